/*
 * SQLSTATE codes and libpq's failures into statuses.
 */
#ifndef SG_PG_ERRORS_H
#define SG_PG_ERRORS_H

#include <libpq-fe.h>

#include "syncguard/sys/fail.h"

/* Codes that a request acts upon. */
#define SG_PG_SERIALIZATION_FAILURE "40001"
#define SG_PG_DEADLOCK "40P01"
#define SG_PG_CANCELLED "57014"
/* An acquire found the lock extended as it was taking it over: nothing was changed. */
#define SG_PG_OVERTAKEN "22012"
/* COMMIT has no room for its notification. */
#define SG_PG_QUEUE_FULL "54000"
/* A warning: the wait for a synchronous standby was cancelled. */
#define SG_PG_WARNING "01000"

/* Fails with the status and the text for a SQLSTATE ("": the connection was lost). */
syncguard_status sg_pg_fail(syncguard_error *err, const char *sqlstate);
/* Why a connection attempt failed. service: one was asked for. */
syncguard_status sg_pg_fail_connect(syncguard_error *err, PGconn *pg, bool service);

#endif
