/*
 * The statements of the operations, and the advisory locks and notifications that all sessions
 * agree on.
 */
#ifndef SG_PG_SQL_H
#define SG_PG_SQL_H

#include <stdatomic.h>

#include "names.h"

typedef enum sg_pg_statement {
    SG_PG_BEGIN,
    SG_PG_COMMIT,
    SG_PG_SET_LIMITS,   /* lock_timeout, statement_timeout */
    SG_PG_LOCK_KEY,     /* name */
    SG_PG_CURRENT_ROW,  /* name, id */
    SG_PG_ACQUIRE,      /* name, id, ttl, tolerance, key, counter's name, limit, owner */
    SG_PG_LOCK_ID,      /* id */
    SG_PG_EXTEND,       /* id, tolerance, whether waiters are notified, ttl */
    SG_PG_RELEASE,      /* id, tolerance, whether waiters are notified */
    SG_PG_UNDO,         /* name, id, whether waiters are notified */
    SG_PG_CLEANUP,      /* name, id, expiry, guard */
    SG_PG_EXTEND_MANY,  /* ids, ttls, whether waiters are notified, tolerance */
    SG_PG_COUNTER,      /* counter's name */
    SG_PG_BY_KEY,       /* name */
    SG_PG_BY_ID,        /* id */
    SG_PG_LIST,         /* after, tolerance, limit */
    SG_PG_LIST_EXPIRED, /* after, guard, limit */
    SG_PG_STATEMENTS
} sg_pg_statement;

/* The advisory lock that waiters for a name hold: one of 64 for all names, because the lock table
 * of the server is finite and serves all its users. */
#define SG_PG_WAIT_LOCK(name) "1398358599, (pg_catalog.hashtext(" name ") & 63) + 1"
/* The advisory lock by which set-ups exclude each other. */
#define SG_PG_SETUP_LOCK "1398358599, 0"
#define SG_PG_CHANNEL "syncguard"
/* Follows the hash in a notification that a lock is still held but ends earlier than before. */
#define SG_PG_EARLIER " earlier"

#define SG_PG_STATEMENT_NAME_SIZE 24
/* Two forms of each statement: for a lock table without and with an owner column. */
#define SG_PG_FORMS 2

/* The statements of a handle. */
typedef struct sg_pg_statements {
    sg_pg_table locks;
    sg_pg_table fences;
    atomic_int form;      /* the form that fits the lock table; -1: not known yet */
    atomic_bool prepared; /* they may be prepared */
    char *sql[SG_PG_FORMS][SG_PG_STATEMENTS];
    char names[SG_PG_FORMS][SG_PG_STATEMENTS][SG_PG_STATEMENT_NAME_SIZE];
} sg_pg_statements;

/* Writes the texts and names of the statements for the tables. */
syncguard_status sg_pg_statements_write(sg_pg_statements *statements, syncguard_error *err);
void sg_pg_statements_free(sg_pg_statements *statements);

#endif
