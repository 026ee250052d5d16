/*
 * Stored names. The names of a key and of its counter are those that the TypeScript library uses.
 */
#include <stdio.h>
#include <string.h>

#include "names.h"
#include "syncguard/postgres.h"
#include "syncguard/sys/fail.h"

syncguard_status sg_pg_name(const char *key, char out[SYNCGUARD_NAME_SIZE], syncguard_error *err)
{
    size_t length = 0;
    return syncguard_storage_name(NULL, key, SYNCGUARD_POSTGRES_LIMIT_BYTES,
                                  SYNCGUARD_POSTGRES_RESERVE_BYTES, out, &length, err);
}

syncguard_status sg_pg_counter_name(const char *name, char out[SYNCGUARD_NAME_SIZE],
                                    syncguard_error *err)
{
    size_t length = 0;
    return syncguard_fence_name(NULL, name, SYNCGUARD_POSTGRES_LIMIT_BYTES,
                                SYNCGUARD_POSTGRES_RESERVE_BYTES, out, &length, err);
}

/* Longest identifier that PostgreSQL does not truncate. */
#define MAX_IDENTIFIER 63

/* Length of the identifier at the start of text, 0 if there is none. */
static size_t pg_identifier_length(const char *text)
{
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789$";
    return strspn(text, first) != 0 ? strspn(text, more) : 0;
}

syncguard_status sg_pg_table_read(const char *name, const char *option, sg_pg_table *out,
                                  syncguard_error *err)
{
    size_t schema = 0;
    size_t table = pg_identifier_length(name);
    const char *bare = name;
    if (table != 0 && name[table] == '.') {
        schema = table;
        bare = name + table + 1;
        table = pg_identifier_length(bare);
    }
    if (table == 0 || bare[table] != 0 || table > MAX_IDENTIFIER || schema > MAX_IDENTIFIER)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option %s is no table name: name or schema.name, each of at most "
                              "63 letters, digits, _ and $",
                              option);
    if (schema != 0)
        snprintf(out->quoted, sizeof out->quoted, "\"%.*s\".\"%s\"", (int)schema, name, bare);
    else
        snprintf(out->quoted, sizeof out->quoted, "\"%s\"", bare);
    memcpy(out->bare, bare, table + 1);
    return SYNCGUARD_OK;
}
