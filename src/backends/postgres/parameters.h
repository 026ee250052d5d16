/*
 * Checks of libpq's connection parameters before connecting.
 */
#ifndef SG_PG_PARAMETERS_H
#define SG_PG_PARAMETERS_H

#include <libpq-fe.h>

#include "syncguard/sys/fail.h"

/* The value of a keyword, NULL if it is not given or empty. */
const char *sg_pg_parameter(const PQconninfoOption *all, const char *keyword);
/* The same, or else the value of an environment variable (NULL: none). */
const char *sg_pg_parameter_or_env(const PQconninfoOption *all, const char *keyword,
                                   const char *variable);
/* True if name is a connection parameter of the linked libpq. */
bool sg_pg_is_parameter(const char *name);
/* InvalidArgument for values that libpq would refuse, also from the environment. */
syncguard_status sg_pg_parameters_check(const PQconninfoOption *all, syncguard_error *err);
/* InvalidArgument unless port is NULL or a port number. */
syncguard_status sg_pg_port_check(const char *port, syncguard_error *err);
/* True if libpq would print a warning and ignore the password file, because others may read it or
 * it is not a plain file. */
bool sg_pg_passfile_refused(const PQconninfoOption *all);

#endif
