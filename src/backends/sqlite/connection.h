/* An SQLite connection with its settings and prepared statements. Used by one thread at a time. */
#ifndef SG_SQLITE_CONNECTION_H
#define SG_SQLITE_CONNECTION_H

#include <sqlite3.h>
#include <stdbool.h>

#include "database_file.h"
#include "syncguard/error.h"

typedef enum sg_sqlite_statement {
    SG_SQLITE_BEGIN,
    SG_SQLITE_BEGIN_IMMEDIATE,
    SG_SQLITE_COMMIT,
    SG_SQLITE_ROLLBACK,
    SG_SQLITE_READ_KEY, /* this and the next two: the columns that record.c reads */
    SG_SQLITE_READ_ID,
    SG_SQLITE_READ_PAGE,
    SG_SQLITE_READ_COUNTER,
    SG_SQLITE_WRITE_COUNTER,
    SG_SQLITE_WRITE_LOCK,
    SG_SQLITE_DELETE_LOCK,
    SG_SQLITE_EXTEND_LOCK,
    SG_SQLITE_STATEMENT_COUNT
} sg_sqlite_statement;

typedef struct sg_sqlite_connection {
    char path[SG_SQLITE_PATH_SIZE]; /* of the database, without links; never changes */
    sqlite3 *db;                    /* NULL: not connected */
    sqlite3_stmt *statements[SG_SQLITE_STATEMENT_COUNT];
    bool disk_full; /* a statement failed with SQLITE_FULL; the caller resets it */
} sg_sqlite_connection;

/* Opens and configures a connection without reading the file. */
syncguard_status sg_sqlite_connect(const char *path, sqlite3 **out, syncguard_error *err);
/* Closes without a checkpoint. */
void sg_sqlite_disconnect(sg_sqlite_connection *connection);

/* Runs SQL once. *out is the first column of its first row as text, cut to fit; empty without a
 * row. Returns an SQLite code. */
int sg_sqlite_query(sqlite3 *db, const char *sql, char *out, size_t size);

/* The prepared statement; prepares it on first use. */
syncguard_status sg_sqlite_prepare(sg_sqlite_connection *connection, sg_sqlite_statement which,
                                   sqlite3_stmt **out, syncguard_error *err);
/* Steps a statement that may return a row. OK: *row tells whether it did. The caller resets it. */
syncguard_status sg_sqlite_step(sg_sqlite_connection *connection, sqlite3_stmt *statement,
                                bool *row, syncguard_error *err);
/* Steps a statement that returns no rows, and resets it. */
syncguard_status sg_sqlite_finish(sg_sqlite_connection *connection, sqlite3_stmt *statement,
                                  syncguard_error *err);
/* Prepares and finishes a statement without parameters. */
syncguard_status sg_sqlite_execute(sg_sqlite_connection *connection, sg_sqlite_statement which,
                                   syncguard_error *err);

/*
 * A plain BEGIN reads first and takes the write lock with the first write, which fails if another
 * connection has committed in between. So what was read still holds when the operation acts on it,
 * and an attempt that finds nothing to do never takes the write lock. immediate: takes it at once.
 */
syncguard_status sg_sqlite_begin(sg_sqlite_connection *connection, bool immediate,
                                 syncguard_error *err);
/* Ends an open transaction, if there is one. */
void sg_sqlite_rollback(sg_sqlite_connection *connection);

#endif
