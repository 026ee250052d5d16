/* syncguard version: the version of the library that is loaded at run time. */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"

int cmd_version(cli_options *options)
{
    const char *version = syncguard_constants_get()->version;
    cli_json json;
    if (!options->json) {
        printf("syncguard %s\n", version);
        return CLI_OK;
    }
    cli_json_begin(&json);
    cli_json_text(&json, "version", version);
    cli_json_end(&json);
    return CLI_OK;
}
