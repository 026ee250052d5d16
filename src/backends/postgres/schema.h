/*
 * The tables of locks and counters: see schema.c.
 */
#ifndef SG_PG_SCHEMA_H
#define SG_PG_SCHEMA_H

#include "connection.h"
#include "names.h"
#include "syncguard/backend.h"
#include "syncguard/sys/wait.h"

/* InvalidArgument if the tables are missing or unusable. *has_index: there is an index on the
 * expiry. */
syncguard_status sg_pg_schema_check(sg_pg_connection *connection, const sg_pg_table *locks,
                                    const sg_pg_table *fences, const syncguard_limits *limits,
                                    bool *has_owner, bool *has_index, syncguard_error *err);
/* Creates what is missing, and reports to the log of options what was created. */
syncguard_status sg_pg_schema_create(sg_pg_connection *connection, const sg_pg_table *locks,
                                     const sg_pg_table *fences, const syncguard_options *options,
                                     const syncguard_limits *limits, syncguard_error *err);
/* Prints the statements that create everything. */
void sg_pg_schema_print(const sg_pg_table *locks, const sg_pg_table *fences,
                        syncguard_print_fn print, void *context);

#endif
