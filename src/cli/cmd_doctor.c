/* syncguard doctor: what would break the promises on this store. Exit 0 fine, 1 warn, 2 block. */
#include "cli.h"

typedef struct examination {
    bool json;
    syncguard_severity worst;
} examination;

static void on_finding(void *context, syncguard_severity severity, const char *topic,
                       const char *text)
{
    static const char *const words[] = {"fine", "warn", "block"};
    examination *e = context;
    const char *word = words[severity <= SYNCGUARD_BLOCK ? severity : SYNCGUARD_BLOCK];
    char shown[1024];
    cli_json json;
    if (severity > e->worst)
        e->worst = severity;
    if (e->json) {
        cli_json_begin(&json);
        cli_json_text(&json, "severity", word);
        cli_json_text(&json, "topic", topic);
        cli_json_text(&json, "text", text);
        cli_json_end(&json);
        return;
    }
    cli_plain(text, shown, sizeof shown);
    printf("%-5s  %s: %s\n", word, topic, shown);
}

int cmd_doctor(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    examination e = {options->json, SYNCGUARD_FINE};
    int code = cli_open(options, NULL, NULL, &backend);
    if (code != CLI_OK)
        return code;
    if (syncguard_examine(backend, NULL, on_finding, &e, &err) != SYNCGUARD_OK)
        code = cli_failure(options, &err);
    else
        code = (int)e.worst;
    syncguard_close(backend);
    return code;
}
