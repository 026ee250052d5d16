/* syncguard config: the places where the URL of the store may come from, and which one counts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"
#include "text.h"

enum { PLACES = 5, NAME_SIZE = 512 };

/* The first place that is set counts; the last one always is. */
typedef struct place {
    char name[NAME_SIZE];
    const char *unset; /* NULL: it is set */
} place;

static bool absolute(const char *path)
{
    return path != NULL && path[0] == '/';
}

static void look_at_file(place *p)
{
    struct stat about;
    if (stat(p->name, &about) != 0 && (errno == ENOENT || errno == ENOTDIR))
        p->unset = "does not exist";
}

/* The order of syncguard_default_url. */
static void find_places(const cli_options *options, place places[PLACES])
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    memset(places, 0, PLACES * sizeof *places);
    snprintf(places[0].name, NAME_SIZE, "-b");
    places[0].unset = options->backend == NULL ? "not given" : NULL;
    snprintf(places[1].name, NAME_SIZE, "SYNCGUARD_URL");
    places[1].unset = getenv("SYNCGUARD_URL") == NULL ? "not set" : NULL;
    if (absolute(config) || absolute(home))
        snprintf(places[2].name, NAME_SIZE, "%s%s/syncguard/url", absolute(config) ? config : home,
                 absolute(config) ? "" : "/.config");
    else
        snprintf(places[2].name, NAME_SIZE, "~/.config/syncguard/url");
    look_at_file(&places[2]);
    snprintf(places[3].name, NAME_SIZE, "/etc/syncguard/url");
    look_at_file(&places[3]);
    snprintf(places[4].name, NAME_SIZE, "default");
}

static void print_text(const place places[PLACES], size_t used, const char *shown)
{
    printf("store: %s\n\n", shown);
    for (size_t i = 0; i < PLACES; i++) {
        char name[NAME_SIZE];
        const char *state = places[i].unset != NULL ? places[i].unset : "set, but not used";
        cli_escape(places[i].name, name, sizeof name);
        if (i == used)
            state = i == PLACES - 1 ? "used, because nothing above is set" : "used";
        else if (i == PLACES - 1)
            state = "not used";
        printf("%s %-36s %s\n", i == used ? "->" : "  ", name, state);
    }
}

int cmd_config(cli_options *options)
{
    char url[CLI_URL_SIZE], shown[512];
    place places[PLACES];
    syncguard_error err;
    cli_json json;
    size_t used = 0;
    find_places(options, places);
    while (places[used].unset != NULL)
        used++;
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    cli_url_without_secrets(url, shown, sizeof shown);
    bool usable = cli_url_usable(url, &err);
    if (options->json) {
        cli_json_begin(&json);
        cli_json_text(&json, "store", shown);
        cli_json_text(&json, "source", places[used].name);
        cli_json_bool(&json, "usable", usable);
        cli_json_end(&json);
    } else {
        print_text(places, used, shown);
    }
    if (!usable)
        cli_message("no command can use this URL: %s", err.message);
    return usable ? CLI_OK : CLI_USAGE;
}
