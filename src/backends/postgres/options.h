/*
 * Converts options and URLs into the config of a handle.
 */
#ifndef SG_PG_OPTIONS_H
#define SG_PG_OPTIONS_H

#include "names.h"
#include "pool.h"
#include "syncguard/postgres.h"
#include "syncguard/sys/url.h"

typedef struct sg_pg_config {
    syncguard_options common;
    syncguard_postgres_options own; /* checked, with defaults; strings are the caller's */
    sg_pg_table locks;
    sg_pg_table fences;
} sg_pg_config;

/* Either of the given options may be NULL. */
syncguard_status sg_pg_options_read(const syncguard_postgres_options *own,
                                    const syncguard_options *common, sg_pg_config *out,
                                    syncguard_error *err);
/* Creates a pool. It has no connections yet. */
syncguard_status sg_pg_options_pool(const sg_pg_config *config, sg_pg_pool **out,
                                    syncguard_error *err);

/* The options in a URL, and the memory that their strings point into. */
typedef struct sg_pg_url {
    syncguard_options common;
    syncguard_postgres_options own;
    syncguard_url *url;
    char *conninfo; /* the URL without our options */
} sg_pg_url;

/* Options in the URL replace the given ones. out must be freed, also after a failure. */
syncguard_status sg_pg_url_read(const char *text, const syncguard_options *common, sg_pg_url *out,
                                syncguard_error *err);
void sg_pg_url_free(sg_pg_url *url);

#endif
