/*
 * The handle of the SQLite backend.
 *
 * One connection per handle, used by one thread at a time: the thread inside
 * `gate` owns everything that has no other guard named beside it. No thread waits
 * inside the gate: a busy database is tried again after a pause outside
 * (sg_sqlite_request).
 *
 * POSIX locks belong to the process and vanish when any descriptor of their file
 * is closed. So nothing here opens the database or its -shm file except through
 * SQLite (but see attach_keep_shm in attach.c); the -wal and -wake files carry no such locks.
 */
#ifndef SG_SQLITE_BACKEND_H
#define SG_SQLITE_BACKEND_H

#include "boot.h"
#include "connection.h"
#include "notify.h"
#include "syncguard/sys/backend.h"
#include "wal.h"

/* The files that SQLite works on. */
typedef struct sg_sqlite_files {
    syncguard_fd_identity database;
    syncguard_fd_identity wal;
    syncguard_fd_identity shm;
} sg_sqlite_files;

typedef struct sg_sqlite {
    syncguard_backend base;
    pid_t pid;    /* of the process that opened it */
    bool durable; /* grants are synced before they are reported */
    mode_t mode;  /* of a file that is created: 0600, or 0660 to share it with a group */
    syncguard_gate gate;
    sg_sqlite_boot boot;
    sg_sqlite_connection connection;
    sg_sqlite_wal wal;
    sg_sqlite_notify notify;

    /* attach.c */
    bool attached; /* connected to a database that is ours and set up */
    char shm_path[SG_SQLITE_BESIDE_SIZE];
    sg_sqlite_files files;  /* as they were when it was attached */
    struct sg_sqlite *next; /* the next in the list of attached handles */
    int old_shm;            /* of a database that was replaced, until attached again; -1 */
    int64_t checked_ns;     /* when files and clock were last checked */
    int64_t lost_ns;        /* when the files were found replaced; 0: they are not */
    bool was_replaced;      /* to be logged outside the gate, as is reconnected */
    bool reconnected;
} sg_sqlite;

static inline sg_sqlite *sg_sqlite_of(syncguard_backend *backend)
{
    return (sg_sqlite *)backend;
}

/* ---- attach.c: connects the handle to its files, and notices that they were replaced ---- */

/* Inside the gate, before anything else: connects if necessary, and checks that the connected files
 * are still those at the paths. Busy while that is not possible yet. */
syncguard_status sg_sqlite_attach(sg_sqlite *sqlite, syncguard_error *err);
/* Leaves the gate, and then logs what sg_sqlite_attach has found, so that a log callback delays no
 * other thread. */
void sg_sqlite_leave(sg_sqlite *sqlite);
/* Closes the connection, without a checkpoint. */
void sg_sqlite_detach(sg_sqlite *sqlite);
/* Whether the connected files are those at the paths. */
bool sg_sqlite_in_place(const sg_sqlite *sqlite);

#endif
