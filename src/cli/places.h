/* The places where the URL of the store may come from, in the order of syncguard_default_url. */
#ifndef SYNCGUARD_CLI_PLACES_H
#define SYNCGUARD_CLI_PLACES_H

#include "options.h"

enum { CLI_PLACES = 5, CLI_PLACE_SIZE = 512 };

/* The first place that is set counts; the last one always is. */
typedef struct cli_place {
    char name[CLI_PLACE_SIZE];
    const char *unset; /* NULL: it is set */
} cli_place;

/* Fills in all places and returns the index of the one that counts. */
size_t cli_find_places(const cli_options *options, cli_place places[CLI_PLACES]);

#endif
