/* syncguard config: the places where the URL of the store may come from, and which one is used. */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"
#include "text.h"

static void config_print_sources(const cli_place places[CLI_PLACES], size_t used, const char *shown)
{
    printf("store: %s\n\n", shown);
    for (size_t i = 0; i < CLI_PLACES; i++) {
        char name[CLI_PLACE_SIZE];
        const char *state = places[i].unset != NULL ? places[i].unset : "set, but not used";
        cli_escape(places[i].name, name, sizeof name);
        if (i == used)
            state = i == CLI_PLACES - 1 ? "used, because nothing above is set" : "used";
        else if (i == CLI_PLACES - 1)
            state = "not used";
        printf("%s %-36s %s\n", i == used ? "->" : "  ", name, state);
    }
}

int cmd_config(cli_options *options)
{
    char url[CLI_URL_SIZE], shown[512];
    cli_place places[CLI_PLACES];
    syncguard_error err;
    cli_json json;
    size_t used = cli_find_places(options, places);
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    cli_url_without_secrets(url, shown, sizeof shown);
    bool valid = cli_url_valid(url, &err);
    if (options->json) {
        cli_json_begin(&json);
        cli_json_text(&json, "store", shown);
        cli_json_text(&json, "source", places[used].name);
        cli_json_bool(&json, "valid", valid);
        cli_json_end(&json);
    } else {
        config_print_sources(places, used, shown);
    }
    if (!valid)
        cli_message("no command can use this URL: %s", err.message);
    return valid ? CLI_OK : CLI_USAGE;
}
