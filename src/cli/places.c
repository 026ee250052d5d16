/* The places where the URL of the store may come from. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "places.h"

static bool path_is_absolute(const char *path)
{
    return path != NULL && path[0] == '/';
}

static void url_source_check_file(cli_place *p)
{
    struct stat about;
    if (stat(p->name, &about) != 0 && (errno == ENOENT || errno == ENOTDIR))
        p->unset = "does not exist";
}

size_t cli_find_places(const cli_options *options, cli_place places[CLI_PLACES])
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    memset(places, 0, CLI_PLACES * sizeof *places);
    snprintf(places[0].name, CLI_PLACE_SIZE, "-b");
    places[0].unset = options->backend == NULL ? "not given" : NULL;
    snprintf(places[1].name, CLI_PLACE_SIZE, "SYNCGUARD_URL");
    places[1].unset = getenv("SYNCGUARD_URL") == NULL ? "not set" : NULL;
    if (path_is_absolute(config) || path_is_absolute(home))
        snprintf(places[2].name, CLI_PLACE_SIZE, "%s%s/syncguard/url",
                 path_is_absolute(config) ? config : home,
                 path_is_absolute(config) ? "" : "/.config");
    else
        snprintf(places[2].name, CLI_PLACE_SIZE, "~/.config/syncguard/url");
    url_source_check_file(&places[2]);
    snprintf(places[3].name, CLI_PLACE_SIZE, "/etc/syncguard/url");
    url_source_check_file(&places[3]);
    snprintf(places[4].name, CLI_PLACE_SIZE, "default");
    size_t used = 0;
    while (places[used].unset != NULL)
        used++;
    return used;
}
