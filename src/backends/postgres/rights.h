/*
 * Findings for `doctor`: the privileges of the role.
 */
#ifndef SG_PG_RIGHTS_H
#define SG_PG_RIGHTS_H

#include "operations.h"
#include "round_trip.h"

/* Whether the role may use the schemas of the tables: tables in any other schema look as if they
 * did not exist. */
syncguard_status sg_pg_diagnose_schema_rights(const syncguard_findings *to, const sg_pg *pg,
                                              sg_pg_connection *connection,
                                              const syncguard_limits *limits, bool *visible,
                                              syncguard_error *err);
/* Whether the role has the privileges on tables and functions that the statements need. The tables
 * must exist. *readable: locks can be read. */
syncguard_status sg_pg_diagnose_rights(const syncguard_findings *to, const sg_pg *pg,
                                       sg_pg_connection *connection, const syncguard_limits *limits,
                                       bool *readable, syncguard_error *err);

#endif
