/* syncguard setup: creates the tables that the store needs, or prints the statements. */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "report.h"
#include "store.h"

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
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    cli_announce_store(url, shown, sizeof shown);
    store.log = cli_log;
    if (syncguard_setup(url, &store, options->print ? print : NULL, NULL, &err) != SYNCGUARD_OK)
        return cli_failure(&err);
    if (!options->print)
        cli_notice("%s is ready", shown);
    return CLI_OK;
}
