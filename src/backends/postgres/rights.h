/*
 * Findings for `doctor`: what the role may do.
 */
#ifndef SG_PG_RIGHTS_H
#define SG_PG_RIGHTS_H

#include "operations.h"
#include "round_trip.h"

/* Whether the role may use the schemas of the tables: others look as if they did not exist. */
syncguard_status sg_pg_diagnose_schema_rights(const syncguard_findings *to, const sg_pg *pg,
                                              sg_pg_connection *connection,
                                              const syncguard_limits *limits, bool *visible,
                                              syncguard_error *err);
/* Whether it may do with tables and functions what the statements do. The tables exist. *readable:
 * locks can be read. */
syncguard_status sg_pg_diagnose_rights(const syncguard_findings *to, const sg_pg *pg,
                                       sg_pg_connection *connection, const syncguard_limits *limits,
                                       bool *readable, syncguard_error *err);

#endif
