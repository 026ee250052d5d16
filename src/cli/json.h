/* Flat JSON objects on stdout, one per line. */
#ifndef SYNCGUARD_CLI_JSON_H
#define SYNCGUARD_CLI_JSON_H

#include <stdio.h>

#include <syncguard.h>

typedef struct cli_json {
    FILE *out;
    bool first;
} cli_json;

void cli_json_begin(cli_json *json);
void cli_json_text(cli_json *json, const char *name, const char *value);
void cli_json_int(cli_json *json, const char *name, int64_t value);
void cli_json_bool(cli_json *json, const char *name, bool value);
/* The fields of a lock; the lock id only if with_id. */
void cli_json_lock(cli_json *json, const syncguard_lock_info_raw *lock, bool with_id);
void cli_json_end(cli_json *json);

#endif
