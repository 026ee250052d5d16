/* The tables in the database file, and the check that the file is not that of another program. */
#ifndef SG_SQLITE_SCHEMA_H
#define SG_SQLITE_SCHEMA_H

#include <sqlite3.h>

#include "syncguard/error.h"

/* Checks that the file is ours, creates the tables in an empty one, switches to WAL. Busy if
 * another process does that now. */
syncguard_status sg_sqlite_schema_open(sqlite3 *db, const char *path, syncguard_error *err);

#endif
