/*
 * Notifications between processes: the -wake file, 4096 cells of eight bytes beside the database.
 *
 * A release, or an extend that lets a lock end earlier, writes a value that was never written
 * before into the cell of its key. A handle with waiters has one thread, to which the kernel
 * reports writes (inotify). It reads the cells and reports the watched keys whose cell has changed.
 * A waiter reads the value of the cell before the attempt that decides whether to wait, and a
 * release is committed before its cell is written. So no release is missed, and a spurious report
 * only costs an attempt.
 *
 * The file holds no state that matters. It is read and written, never mapped: access to a truncated
 * mapping raises a signal. Waiters rely on it, so every handle opens it, with its space allocated,
 * before its first operation: then a release can always be published. If inotify fails, waiters
 * poll. If the file is removed or replaced, the kernel reports that too, and all waiters try again.
 */
#ifndef SG_SQLITE_NOTIFY_H
#define SG_SQLITE_NOTIFY_H

#include <pthread.h>
#include <stdatomic.h>

#include "database_file.h"
#include "syncguard/sys/backend.h"

#define SG_SQLITE_CELLS 4096
#define SG_SQLITE_NO_CELL (-1)
#define SG_SQLITE_WATCH_BUCKETS 512

struct sg_sqlite_watched;

typedef struct sg_sqlite_notify {
    syncguard_backend *backend; /* backend and the paths never change */
    const char *database;
    char path[SG_SQLITE_BESIDE_SIZE];
    atomic_bool files_changed; /* a file may no longer be the one at its path */

    pthread_mutex_t mutex; /* guards all below; never held while the core is called */
    int fd;                /* the -wake file; -1: not open yet */
    bool started;
    bool failed; /* the thread has ended: waiters poll */
    int inotify_fd;
    syncguard_parker stop;
    pthread_t thread;
    uint64_t next_value;
    struct sg_sqlite_watched *watched[SG_SQLITE_WATCH_BUCKETS]; /* by cell */
} sg_sqlite_notify;

/* database must stay valid. The caller has zeroed *notify. */
syncguard_status sg_sqlite_notify_init(sg_sqlite_notify *notify, syncguard_backend *backend,
                                       const char *database, syncguard_error *err);
/* forked: the thread belongs to the parent, and no descriptor is closed. */
void sg_sqlite_notify_destroy(sg_sqlite_notify *notify, bool forked);
/* Opens the -wake file, and creates it if it is missing. Called again after the file was replaced;
 * then all waiters try again. Inside the gate. */
syncguard_status sg_sqlite_notify_open(sg_sqlite_notify *notify, syncguard_error *err);
/* Whether the open file is the one at the path. */
bool sg_sqlite_notify_in_place(sg_sqlite_notify *notify);

/* Watches key. False if releases cannot be reported (waiters poll). *added: it was not watched
 * before, so the caller must try once more. */
bool sg_sqlite_notify_watch(sg_sqlite_notify *notify, const char *key, size_t length, bool *added);
void sg_sqlite_notify_unwatch(sg_sqlite_notify *notify, const char *key, size_t length);
/* Tells other processes that key was released. */
void sg_sqlite_notify_publish(sg_sqlite_notify *notify, const char *key, size_t length);
/* The index of the cell of key. */
int sg_sqlite_notify_cell(const char *key, size_t length);
/* Tells all processes, including this one, that a key of the cell will be free earlier. */
void sg_sqlite_notify_publish_cell(sg_sqlite_notify *notify, int cell);

#endif
