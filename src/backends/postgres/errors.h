/*
 * Maps SQLSTATE codes and failures of libpq to statuses.
 */
#ifndef SG_PG_ERRORS_H
#define SG_PG_ERRORS_H

#include <libpq-fe.h>

#include "syncguard/sys/fail.h"

/* Codes that a request reacts to. */
#define SG_PG_SERIALIZATION_FAILURE "40001"
#define SG_PG_DEADLOCK "40P01"
#define SG_PG_CANCELLED "57014"
/* An acquire found the lock extended while taking it over: nothing was changed. */
#define SG_PG_OVERTAKEN "22012"
/* COMMIT failed, because the notification queue of the server is full. */
#define SG_PG_QUEUE_FULL "54000"
/* A warning: the wait for a synchronous standby was cancelled. */
#define SG_PG_WARNING "01000"

/* Fails with the status and the text for a SQLSTATE ("": the connection was lost). */
syncguard_status sg_pg_fail(syncguard_error *err, const char *sqlstate);
/* Fails with the reason why a connection attempt failed. service: a service was given. */
syncguard_status sg_pg_fail_connect(syncguard_error *err, PGconn *pg, bool service);

#endif
