/*
 * PostgreSQL servers that a test starts, stops and queries: those of tests/servers, with URLs and
 * SQL. Any failure here ends the program with a message, because a test without a server shows
 * nothing.
 */
#ifndef TEST_POSTGRES_SERVER_H
#define TEST_POSTGRES_SERVER_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "servers/client.h"

typedef struct pg_server {
    test_server process;
    const char *folder;
    char data[96];
    int port;
    char settings[1024]; /* lines "name=value", for the next start */
    char text[4][512];
    int next_text;
} pg_server;

/* settings: lines "name=value" (may be NULL). Trusts every connection. */
pg_server *pg_server_start(const char *settings);
/* A hot standby of a running server, streaming from it. */
pg_server *pg_server_standby(pg_server *primary);
void pg_server_promote(pg_server *server);
/* Ends it and removes its folder. */
void pg_server_end(pg_server *server);
/* For restarts: mode is SIGTERM (smart), SIGINT (fast), SIGQUIT (at once) or SIGKILL. */
void pg_server_down(pg_server *server, int mode);
void pg_server_up(pg_server *server);

/* "postgres://postgres@127.0.0.1:PORT/DATABASE?QUERY" (query may be NULL). The last four results
 * remain valid. */
const char *pg_url(pg_server *server, const char *database, const char *query);
/* The same as user:password. */
const char *pg_url_as(pg_server *server, const char *user, const char *database, const char *query);

/* A plain connection that must work. */
PGconn *pg_plain(pg_server *server, const char *database);
/* Runs SQL that must work. Returns the first value of the last row, or ""; valid until the next
 * call. */
const char *pg_sql(PGconn *pg, const char *format, ...) __attribute__((format(printf, 2, 3)));
long pg_number(PGconn *pg, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A database with the schema of locks, made through the library under test. */
void pg_make_database(pg_server *server, const char *name);
/* Sessions of the database begin as serializable, and only READ COMMITTED may write locks and
 * counters. */
void pg_make_serializable(PGconn *pg, const char *database);

/* Starts PgBouncer in transaction mode in front of a server, and returns its port. It ends with the
 * program. more: further lines of its configuration. */
int pg_bouncer(pg_server *server, const char *more);
/* The same, but its sessions on the server belong to user, regardless of the client. */
int pg_bouncer_as(pg_server *server, const char *user, const char *more);

int pg_free_port(void);
void pg_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
