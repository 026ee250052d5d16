/*
 * The operations, as syncguard_backend_ops describes them.
 */
#ifndef SG_PG_OPERATIONS_H
#define SG_PG_OPERATIONS_H

#include "backend.h"

/* mutate.c */
syncguard_status sg_pg_acquire(syncguard_backend *, syncguard_acquire_op *, syncguard_error *);
syncguard_status sg_pg_release(syncguard_backend *, syncguard_release_op *, syncguard_error *);
syncguard_status sg_pg_extend(syncguard_backend *, syncguard_extend_op *, syncguard_error *);
syncguard_status sg_pg_undo(syncguard_backend *, const char *, size_t, const char *, int64_t,
                            const syncguard_limits *, syncguard_error *);
syncguard_status sg_pg_cleanup(syncguard_backend *, const syncguard_cleanup_op *,
                               syncguard_error *);
/* renew.c */
syncguard_status sg_pg_extend_many(syncguard_backend *, syncguard_extend_op *, size_t,
                                   const syncguard_limits *, syncguard_error *);
/* read.c */
syncguard_status sg_pg_is_locked(syncguard_backend *, syncguard_is_locked_op *, syncguard_error *);
syncguard_status sg_pg_lookup(syncguard_backend *, syncguard_lookup_op *, syncguard_error *);
syncguard_status sg_pg_list(syncguard_backend *, const syncguard_limits *, syncguard_record_fn,
                            void *, syncguard_error *);
syncguard_status sg_pg_list_expired(syncguard_backend *, const syncguard_limits *,
                                    syncguard_record_fn, void *, syncguard_error *);
/* How many records list leaves out because they cannot be read. */
syncguard_status sg_pg_count_unreadable(sg_pg *pg, const syncguard_limits *limits, size_t *count,
                                        syncguard_error *err);
/* diagnose.c */
syncguard_status sg_pg_diagnose(syncguard_backend *, const syncguard_limits *, syncguard_finding_fn,
                                void *, syncguard_error *);
/* rights.c: a part of the findings */
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
