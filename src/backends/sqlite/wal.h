/*
 * The write-ahead log: syncs that make grants durable, and checkpoints.
 *
 * Commits run with synchronous=NORMAL, so SQLite itself syncs only at checkpoints. A grant is made
 * durable by one fdatasync of the WAL, after its commit and before it is reported; outside the
 * gate, so that other threads go on and share the sync. docs/adr/0017 explains why that is enough.
 */
#ifndef SG_SQLITE_WAL_H
#define SG_SQLITE_WAL_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "database_file.h"
#include "syncguard/sys/descriptor.h"

typedef struct sg_sqlite_wal {
    char path[SG_SQLITE_BESIDE_SIZE];
    bool committed;        /* a commit since the last call of sg_sqlite_wal_checkpoint */
    int frames;            /* in the WAL after our last commit */
    int copied;            /* of these, in the database since our last checkpoint */
    int checkpoint_frames; /* new frames that make a checkpoint due */
    int restart_frames;    /* from here on the checkpoint keeps writers out */
    unsigned recovered;    /* failed syncs that a complete checkpoint has made harmless */

    pthread_mutex_t mutex; /* guards the fields below; the gate guards those above */
    pthread_cond_t done;
    int fd; /* -1: grants need not be durable, or not connected */
    bool syncing;
    uint64_t started;
    uint64_t finished;
    int error; /* of the latest failure */
    atomic_uint failures;
} sg_sqlite_wal;

syncguard_status sg_sqlite_wal_init(sg_sqlite_wal *wal, const char *database, syncguard_error *err);
void sg_sqlite_wal_destroy(sg_sqlite_wal *wal);
/* Starts the WAL of a new connection. durable: opens the file for syncs. Busy if the file at the
 * path is not the expected one. */
syncguard_status sg_sqlite_wal_open(sg_sqlite_wal *wal, sqlite3 *db, bool durable,
                                    syncguard_fd_identity expected, syncguard_error *err);
/* The connection is gone: a commit that is not synced yet counts as failed. */
void sg_sqlite_wal_close(sg_sqlite_wal *wal);

/* Inside the gate, before a grant: after a failed sync nothing is granted until a checkpoint has
 * carried the WAL into the database. Fills *failures for sg_sqlite_wal_sync. */
syncguard_status sg_sqlite_wal_recover(sg_sqlite_wal *wal, sqlite3 *db, unsigned *failures,
                                       syncguard_error *err);
/* Inside the gate: whether a sync has failed and is not recovered yet. */
bool sg_sqlite_wal_failed(const sg_sqlite_wal *wal);
/* Outside the gate: makes what was committed durable. Fails if any sync has failed since recover.
 * This is the only wait without deadline and abort; it lasts at most two syncs of the disk. */
syncguard_status sg_sqlite_wal_sync(sg_sqlite_wal *wal, unsigned failures_before,
                                    syncguard_error *err);
/* Inside the gate: makes a checkpoint if a commit has made one due. It may fail, because the next
 * one follows. */
void sg_sqlite_wal_checkpoint(sg_sqlite_wal *wal, sqlite3 *db);
/* Copies all of the WAL and empties it. Waits for readers and writers for a few milliseconds.
 * Returns an SQLite code. */
int sg_sqlite_wal_truncate(sg_sqlite_wal *wal, sqlite3 *db);

#endif
