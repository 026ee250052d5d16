/*
 * Calls every operation on a store whose server hangs, and prints how late each returned: past its
 * deadline, or after its abort object was triggered.
 *
 *     hang_client URL          prints "ready" when it has used the store, goes on when a line comes
 *     hang_client --named URL  the same where nothing can be used before: its name does not resolve
 *     hang_client --open URL   opening and the first operation: how late are they
 *
 * Each line: operation, how it was ended, milliseconds late, status. Lines of "control" show how
 * late a plain poll(2) was on this machine at the same time.
 *
 * A name that begins with "slow" takes longer to resolve than any call may take.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_support.h"

#define REPETITIONS 5
#define END_MS 150
#define SLOW_MS 500
#define QUEUED 64

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): libc's are reserved */
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    union { /* ISO C has no conversion between the two */
        void *object;
        resolver *function;
    } next = {dlsym(RTLD_NEXT, "getaddrinfo")};
    bool numeric = hints != NULL && (hints->ai_flags & AI_NUMERICHOST) != 0;
    if (!numeric && node != NULL && strncmp(node, "slow", 4) == 0) {
        (void)poll(NULL, 0, SLOW_MS);
        return EAI_AGAIN;
    }
    return next.function == NULL ? EAI_FAIL : next.function(node, service, hints, out);
}

static double hang_now_ms(void)
{
    return test_now_s() * 1e3;
}

typedef struct world {
    syncguard_backend *backend;
    syncguard_queue *queue;
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} world;

/* ---- the operations ---- */

static syncguard_status hang_call_acquire(world *w, syncguard_call *call)
{
    syncguard_grant grant;
    return syncguard_acquire(w->backend, "hang:other", 1000, call, &grant, NULL);
}

static syncguard_status hang_call_release(world *w, syncguard_call *call)
{
    return syncguard_release(w->backend, w->lock_id, call, NULL);
}

static syncguard_status hang_call_extend(world *w, syncguard_call *call)
{
    return syncguard_extend(w->backend, w->lock_id, 600000, call, NULL, NULL);
}

static syncguard_status hang_call_is_locked(world *w, syncguard_call *call)
{
    bool locked = false;
    return syncguard_is_locked(w->backend, "hang", call, &locked, NULL);
}

static syncguard_status hang_call_by_key(world *w, syncguard_call *call)
{
    syncguard_lock_info info;
    return syncguard_get_by_key(w->backend, "hang", call, &info, NULL);
}

static syncguard_status hang_call_by_id(world *w, syncguard_call *call)
{
    syncguard_lock_info info;
    return syncguard_get_by_id(w->backend, w->lock_id, call, &info, NULL);
}

static syncguard_status hang_call_list(world *w, syncguard_call *call)
{
    return syncguard_list(w->backend, call, test_ignore_info, NULL, NULL);
}

static syncguard_status hang_call_helper(world *w, syncguard_call *call)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 1000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = call->abort_object != NULL ? 5000 : call->timeout_ms;
    options.abort_object = call->abort_object;
    syncguard_lock *lock = NULL;
    syncguard_status status =
        syncguard_lock_acquire(w->backend, "hang:other", &options, &lock, NULL);
    syncguard_lock_dispose(lock);
    return status;
}

/* Far more requests than a queue has threads: the last completion counts. */
static syncguard_status hang_call_queue(world *w, syncguard_call *call)
{
    syncguard_lock_options options =
        SYNCGUARD_LOCK_OPTIONS_WAIT_MS(call->abort_object != NULL ? 5000 : call->timeout_ms);
    syncguard_request requests[QUEUED];
    syncguard_completion done = {.status = SYNCGUARD_E_INTERNAL};
    int open = 0;
    if (w->queue == NULL && syncguard_queue_open(w->backend, NULL, &w->queue, NULL) != SYNCGUARD_OK)
        exit(70);
    while (open < QUEUED && syncguard_lock_acquire_async(w->queue, "hang:other", &options, NULL,
                                                         &requests[open], NULL) == SYNCGUARD_OK)
        open++;
    struct pollfd fds[2] = {{syncguard_queue_fd(w->queue), POLLIN, 0},
                            {syncguard_abort_fd(call->abort_object), POLLIN, 0}};
    while (open > 0) {
        (void)poll(fds, 2, -1);
        if (fds[1].fd >= 0 && fds[1].revents != 0) {
            for (int i = 0; i < QUEUED; i++)
                (void)syncguard_queue_cancel(w->queue, requests[i]);
            fds[1].fd = -1;
        }
        for (; syncguard_queue_next(w->queue, &done); open--)
            syncguard_lock_dispose(done.lock);
    }
    return done.status;
}

static const struct {
    const char *name;
    syncguard_status (*call)(world *w, syncguard_call *call);
} operations[] = {{"acquire", hang_call_acquire},     {"extend", hang_call_extend},
                  {"is_locked", hang_call_is_locked}, {"get_by_key", hang_call_by_key},
                  {"get_by_id", hang_call_by_id},     {"list", hang_call_list},
                  {"lock_acquire", hang_call_helper}, {"queue", hang_call_queue},
                  {"release", hang_call_release}};

/* ---- ending them ---- */

typedef struct trigger {
    syncguard_abort *abort_object; /* NULL: only measures how late a wait is */
    double at_ms;                  /* when it was triggered */
} trigger;

static void *trigger_pull(void *argument)
{
    trigger *self = argument;
    double start = hang_now_ms();
    (void)poll(NULL, 0, END_MS);
    self->at_ms = hang_now_ms();
    if (self->abort_object != NULL)
        syncguard_abort_trigger(self->abort_object);
    printf("control - %.2f -\n", self->at_ms - start - END_MS);
    return NULL;
}

static void hang_time_call(world *w, size_t which, bool by_abort)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    trigger end = {NULL, 0};
    if (by_abort && syncguard_abort_create(&end.abort_object, NULL) != SYNCGUARD_OK)
        exit(70);
    call.abort_object = end.abort_object;
    call.timeout_ms = by_abort ? 5000 : END_MS;
    double start = hang_now_ms();
    pthread_t thread;
    if (pthread_create(&thread, NULL, trigger_pull, &end) != 0)
        exit(70);
    syncguard_status status = operations[which].call(w, &call);
    double back = hang_now_ms();
    pthread_join(thread, NULL);
    double late = back - (by_abort ? end.at_ms : start + END_MS);
    printf("%s %s %.2f %s\n", operations[which].name, by_abort ? "abort" : "deadline",
           late < 0 ? 0 : late, syncguard_status_name(status));
    fflush(stdout);
    syncguard_abort_free(end.abort_object);
}

static int hang_time_open(const char *url)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    char wrong[512];
    /* Loads the module, and does nothing else. */
    snprintf(wrong, sizeof wrong, "%s%cno_such_option=1", url,
             strchr(url, '?') != NULL ? '&' : '?');
    if (syncguard_open(wrong, NULL, &backend, NULL) == SYNCGUARD_OK)
        return 70;
    options.timeout_ms = END_MS;
    for (int i = 0; i < REPETITIONS; i++) {
        bool locked = false;
        trigger none = {NULL, 0};
        pthread_t thread;
        if (pthread_create(&thread, NULL, trigger_pull, &none) != 0)
            return 70;
        /* Some stores connect when they are opened, others with the first operation. */
        double start = hang_now_ms();
        syncguard_status status = syncguard_open(url, &options, &backend, NULL);
        if (status == SYNCGUARD_OK) {
            start = hang_now_ms();
            status = syncguard_is_locked(backend, "hang", NULL, &locked, NULL);
        }
        double late = hang_now_ms() - start - END_MS;
        pthread_join(thread, NULL);
        printf("open deadline %.2f %s\n", late < 0 ? 0 : late, syncguard_status_name(status));
        fflush(stdout);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    world w = {NULL, NULL, ""};
    syncguard_grant grant;
    syncguard_error err;
    bool named = argc == 3 && strcmp(argv[1], "--named") == 0;
    if (argc == 3 && strcmp(argv[1], "--open") == 0)
        return hang_time_open(argv[2]);
    if (argc < 2 || syncguard_open(argv[argc - 1], NULL, &w.backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "hang_client: %s\n", argc < 2 ? "no URL" : err.message);
        return 70;
    }
    if (named) {
        memcpy(w.lock_id, "AAAAAAAAAAAAAAAAAAAAAA", sizeof w.lock_id);
    } else if (syncguard_acquire(w.backend, "hang", 600000, NULL, &grant, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "hang_client: %s\n", err.message);
        return 70;
    } else {
        memcpy(w.lock_id, grant.lock_id, sizeof w.lock_id);
    }
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 70;
    for (size_t which = 0; which < sizeof operations / sizeof operations[0]; which++) {
        for (int i = 0; i < 2 * REPETITIONS; i++)
            hang_time_call(&w, which, i % 2 != 0);
    }
    fflush(stdout);
    _exit(0); /* closing would wait for the server */
}
