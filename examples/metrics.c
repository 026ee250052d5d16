/*
 * Count what happens to locks, and print it for Prometheus.
 *
 *     ./metrics [URL]
 */
#include <stdio.h>
#include <stdlib.h>

#include <syncguard.h>

/* Prints the text that a program would serve at /metrics. */
static int print_metrics(const syncguard_backend *backend)
{
    size_t length = syncguard_telemetry_prometheus(backend, NULL, 0);
    size_t size = length + 1024; /* the numbers may have become longer meanwhile */
    char *text = malloc(size);
    if (text == NULL)
        return 1;
    (void)syncguard_telemetry_prometheus(backend, text, size);
    fputs(text, stdout);
    free(text);
    return 0;
}

static void print_log(void *context, syncguard_log_level level, const char *message)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    (void)context;
    fprintf(stderr, "%s: %s\n", names[level], message);
}

static int metrics_locked_work(void *context, syncguard_lock *lock)
{
    (void)context;
    (void)lock;
    return 0;
}

static syncguard_status metrics_backend_open(const char *url, syncguard_backend **out,
                                             syncguard_error *err)
{
    static const syncguard_label labels[] = {{"service", "billing"}, {"region", "eu-1"}};
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = print_log;
    syncguard_backend *bare = NULL;
    syncguard_status status = syncguard_open(url, &options, &bare, err);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.handle_name = "main";
    telemetry.labels = labels;
    telemetry.label_count = 2;
    status = syncguard_telemetry_wrap(bare, &telemetry, out, err);
    if (status != SYNCGUARD_OK)
        syncguard_close(bare); /* else it belongs to *out */
    return status;
}

int main(int argc, char **argv)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    syncguard_status status = metrics_backend_open(argc > 1 ? argv[1] : "memory:", &backend, &err);
    int result = 0;
    for (int i = 0; i < 3 && status == SYNCGUARD_OK; i++)
        status = syncguard_with_lock(backend, "invoices", NULL, metrics_locked_work, NULL, &result,
                                     &err);
    if (status == SYNCGUARD_OK)
        result = print_metrics(backend);
    else
        fprintf(stderr, "%s: %s\n", syncguard_status_name(status), err.message);
    syncguard_close(backend);
    return status == SYNCGUARD_OK ? result : 1;
}
