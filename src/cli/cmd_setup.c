/* syncguard setup: create what the store needs, or print it. */
#include "cli.h"

static void print(void *context, const char *line)
{
    (void)context;
    puts(line);
}

int cmd_setup(cli_options *options)
{
    char url[CLI_URL_SIZE], shown[512];
    syncguard_options store = SYNCGUARD_OPTIONS_INIT;
    syncguard_error err;
    int code = cli_url(options, url);
    if (code != CLI_OK)
        return code;
    cli_url_shown(url, shown, sizeof shown);
    cli_tell("store %s", shown);
    store.log = cli_log;
    if (syncguard_setup(url, &store, options->print ? print : NULL, NULL, &err) != SYNCGUARD_OK)
        return cli_failure(options, &err);
    if (!options->print)
        cli_note("%s is ready", shown);
    return CLI_OK;
}
