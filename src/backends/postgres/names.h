/*
 * Stored names: of a key, of its fence counter, and of the tables.
 */
#ifndef SG_PG_NAMES_H
#define SG_PG_NAMES_H

#include "syncguard/sys/names.h"

/* The stored name of a key in NFC. */
syncguard_status sg_pg_name(const char *key, char out[SYNCGUARD_NAME_SIZE], syncguard_error *err);
/* The stored name of the counter, from that of its key. */
syncguard_status sg_pg_counter_name(const char *name, char out[SYNCGUARD_NAME_SIZE],
                                    syncguard_error *err);

/* A table's name in its forms: quoted for SQL, and its last part unquoted for derived names. */
typedef struct sg_pg_table {
    char quoted[140];
    char bare[64];
} sg_pg_table;

/* Reads "name" or "schema.name". The error text contains option. */
syncguard_status sg_pg_table_read(const char *name, const char *option, sg_pg_table *out,
                                  syncguard_error *err);

#endif
