/* syncguard setup: creates the tables that the store needs, or prints the statements. */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "report.h"
#include "store.h"

static void setup_print_statement(void *context, const char *line)
{
    (void)context;
    puts(line);
}

static void setup_count_statement(void *context, const char *line)
{
    (void)line;
    ++*(size_t *)context;
}

typedef struct setting_up {
    const char *store;
    size_t changes;
} setting_up;

/* The library logs what it changes. */
static void setup_on_log(void *context, syncguard_log_level level, const char *message)
{
    setting_up *s = context;
    if (level != SYNCGUARD_LOG_INFO) {
        cli_log(NULL, level, message);
        return;
    }
    s->changes++;
    printf("%s: %s\n", s->store, message);
}

/* A store for which setup has no statements needs no setup. */
static void setup_report_no_changes(const char *url, const char *store,
                                    const syncguard_options *options)
{
    size_t statements = 0;
    (void)!syncguard_setup(url, options, setup_count_statement, &statements, NULL);
    printf("%s: %s\n", store,
           statements > 0 ? "nothing to do, it is set up already"
                          : "nothing to do, this store needs no setup");
}

int cmd_setup(cli_options *options)
{
    char url[CLI_URL_SIZE], shown[512];
    setting_up state = {shown, 0};
    syncguard_options store = SYNCGUARD_OPTIONS_INIT;
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    cli_announce_store(url, shown, sizeof shown);
    store.log = setup_on_log;
    store.log_context = &state;
    syncguard_error err;
    if (syncguard_setup(url, &store, options->print ? setup_print_statement : NULL, NULL, &err) !=
        SYNCGUARD_OK)
        return cli_open_failure(options, url, &err);
    if (options->print || state.changes > 0)
        return CLI_OK;
    /* If there was nothing to set up, the options of the URL have not been read. */
    if (!cli_url_valid(url, &err))
        return cli_open_failure(options, url, &err);
    setup_report_no_changes(url, shown, &store);
    return CLI_OK;
}
