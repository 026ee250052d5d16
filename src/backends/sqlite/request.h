/* One operation: its attempts inside the gate, and the pauses while the database is busy. */
#ifndef SG_SQLITE_REQUEST_H
#define SG_SQLITE_REQUEST_H

#include "backend.h"

/* One attempt inside the gate. immediate: an earlier attempt lost a race, so this one takes the
 * write lock first. */
typedef syncguard_status (*sg_sqlite_attempt)(sg_sqlite *sqlite, void *op, bool immediate,
                                              syncguard_error *err);
/* Runs attempts until one is not busy, within limits. Open transactions are rolled back; after a
 * commit a checkpoint follows if one is due. */
syncguard_status sg_sqlite_request(sg_sqlite *sqlite, const syncguard_limits *limits,
                                   sg_sqlite_attempt attempt, void *op, syncguard_error *err);

#endif
