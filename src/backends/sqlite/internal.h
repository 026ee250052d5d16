/*
 * What the files of the SQLite backend share.
 *
 * One connection per handle, used by one thread at a time: whoever is inside
 * `gate` owns everything that has no other guard named beside it. Nobody waits inside the gate: a
 * busy database is left, and tried again after a pause outside (sg_sqlite_run).
 *
 * POSIX locks belong to the process and vanish when any descriptor of their file
 * is closed. So nothing here ever opens the database or its -shm file except
 * through SQLite; the -wal and -wake files carry no such locks.
 */
#ifndef SG_SQLITE_INTERNAL_H
#define SG_SQLITE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "syncguard/sqlite.h"
#include "syncguard/sys/backend.h"

/* "SGLK" in the file header; the version counts incompatible layouts. */
#define SG_SQLITE_APPLICATION_ID 0x53474c4b
#define SG_SQLITE_LAYOUT 2
#define SG_SQLITE_HEADER_BYTES 100
/* SQLite's own limit for names is 512 and counts its suffixes. */
#define SG_SQLITE_MAX_PATH_BYTES 480
#define SG_BOOT_ID_SIZE 64

/* Frames in the WAL from which a checkpoint is due: by an acquire, which syncs anyway; by
 * anything, if no acquire comes along; in spite of writers, if the WAL has become that long; when
 * the last handle closes, so that the next start need not read them all. */
#define SG_CHECKPOINT_FRAMES 1000
#define SG_CHECKPOINT_FRAMES_LATE 4000
#define SG_CHECKPOINT_FRAMES_LONG 6000
#define SG_CHECKPOINT_FRAMES_CLOSE 64
/* On a tiny file system all of them are as few as this: see sg_sqlite.checkpoint_frames. */
#define SG_CHECKPOINT_FRAMES_LEAST 16

/* Inside the backend only: somebody else is writing, try again. */
#define SG_SQLITE_BUSY ((syncguard_status)100)

typedef enum sg_statement {
    SG_BEGIN,
    SG_BEGIN_IMMEDIATE,
    SG_COMMIT,
    SG_ROLLBACK,
    SG_FIND_KEY,
    SG_FIND_ID,
    SG_COUNTER,
    SG_NEW_COUNTER,
    SG_SET_COUNTER,
    SG_NEW_LOCK,
    SG_SET_LOCK,
    SG_DROP_LOCK,
    SG_RENEW,
    SG_LOOKUP_KEY,
    SG_LOOKUP_ID,
    SG_PAGE,
    SG_STATEMENT_COUNT
} sg_statement;

/* ---- wake-up across processes (wake.c) --------------------------------------------------- */

#define SG_WAKE_SLOTS 512

struct sg_watched;

typedef struct sg_wake {
    pthread_mutex_t mutex; /* guards all below; never held while the core is called */
    int fd;                /* the -wake file; -1: not open yet */
    bool started;
    bool deaf; /* the thread cannot hear any more: waiters poll */
    int inotify_fd;
    int watches[2]; /* of inotify: the -wake file, the database */
    syncguard_parker stop;
    pthread_t thread;
    uint64_t next_value;
    size_t watched_count;
    uint64_t seen[SG_WAKE_SLOTS]; /* valid where watched is not empty */
    struct sg_watched *watched[SG_WAKE_SLOTS];
} sg_wake;

/* ---- durability (durability.c) -------------------------------------------------------------- */

typedef struct sg_sync {
    pthread_mutex_t mutex; /* also guards sg_sqlite.wal_fd */
    pthread_cond_t done;
    bool running;
    uint64_t started;
    uint64_t finished;
    int error; /* of the latest failure */
    atomic_uint failures;
} sg_sync;

/* ---- boot and clock (boot.c) --------------------------------------------------------------- */

typedef struct sg_boot {
    char id[SG_BOOT_ID_SIZE]; /* the kernel's; empty: unknown */
    int64_t offset_ns;        /* what our boot clock is ahead of the kernel's */
    dev_t namespace_device;   /* our time namespace; both 0: the kernel has none */
    ino_t namespace_inode;
} sg_boot;

syncguard_status sg_boot_read(sg_boot *boot, syncguard_error *err);
/* We are in another time namespace than when it was read. */
bool sg_boot_changed(const sg_boot *boot);
/* The kernel's boot clock in milliseconds, at our time now_ns. */
static inline int64_t sg_boot_ms(const sg_boot *boot, int64_t now_ns)
{
    return (now_ns - boot->offset_ns) / SYNCGUARD_NS_PER_MS;
}

/* ---- the backend ------------------------------------------------------------------------- */

/* Device and inode of the files that SQLite works on. */
typedef struct sg_files {
    syncguard_fd_identity database;
    syncguard_fd_identity wal;
    syncguard_fd_identity shm;
} sg_files;

typedef struct sg_sqlite {
    syncguard_backend base;
    pid_t pid;
    bool durable; /* grants are synced before they are told */
    sg_boot boot; /* of the gate */
    char *path;   /* the database, without links; this and the next three never change */
    char *wal_path;
    char *shm_path;
    char *wake_path;
    mode_t mode; /* its permission bits: files beside it get the same */
    syncguard_gate gate;
    bool ready; /* db is open, recognised and set up */
    sqlite3 *db;
    sqlite3_stmt *statements[SG_STATEMENT_COUNT];
    sg_files files;         /* as they were when db was opened */
    int old_shm;            /* of a database that was replaced, until we are connected again; -1 */
    struct sg_sqlite *next; /* connected, in this process: see file.c */
    int64_t looked_ns;      /* when files and clock were last seen to be the same */
    int64_t lost_ns;        /* when the files were seen to be others; 0: they are ours */
    atomic_bool disturbed;  /* the kernel told of something: look now */
    bool full;              /* the attempt failed because the disk is */
    int wal_fd;             /* opened by the first grant, closed with db */
    int checkpoint_frames;  /* SG_CHECKPOINT_FRAMES, or less on a small file system */
    int wal_frames;         /* in the WAL after our last commit */
    int wal_copied;         /* of these, in the database since our last checkpoint */
    unsigned healed;        /* failed syncs that a checkpoint has made good: see sg_sqlite_heal */
    sg_sync sync;
    sg_wake wake;
} sg_sqlite;

static inline sg_sqlite *sg_sqlite_of(syncguard_backend *backend)
{
    return (sg_sqlite *)backend;
}

/* A lock as far as decisions need it. */
typedef struct sg_row {
    bool found;
    bool live;
    bool dated; /* expires_at_ms could be read */
    /* Empty where they cannot be read; the key also where it is not asked for. */
    char key[SYNCGUARD_KEY_SIZE];
    size_t key_length;
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t expires_at_ms;
    int64_t remaining_ms; /* until it stops being live; 0 or less: dead for that long */
} sg_row;

/* ---- place.c: folder, file, file system ---------------------------------------------------- */

/* Makes the folder if it is missing; the path of the file without links. */
syncguard_status sg_sqlite_resolve(const char *given, char out[SG_SQLITE_MAX_PATH_BYTES + 1],
                                   syncguard_error *err);
/* Makes the file if it is missing, refuses places and files that are not safe. Fills *mode. Busy
 * while somebody else is making it. */
syncguard_status sg_sqlite_place(const char *path, mode_t *mode, syncguard_error *err);
/* Keeps others from making the file at the same time: until *out is closed. Busy if they are. */
syncguard_status sg_sqlite_lock_folder(const char *path, int *out, syncguard_error *err);
/* Refuses a file that is not regular, has a second name, or is not root's if we are root. */
syncguard_status sg_sqlite_check_kind(const char *path, const struct stat *about,
                                      syncguard_error *err);
/* RateLimited, InvalidArgument or ServiceUnavailable, by what the system said. */
syncguard_status sg_sqlite_fail_errno(syncguard_error *err, int error, const char *path,
                                      const char *what);
/* What kind of file system path is on: its name, and whether locks there reach all users. */
syncguard_status sg_sqlite_file_system(const char *path, char *name, size_t size, bool *local,
                                       syncguard_error *err);
/* "EACCES" and the like for messages' native field. */
const char *sg_sqlite_errno_name(int error);

/* ---- connection.c: connection, transactions, errors ---------------------------------------- */

/* Opens and configures a connection without reading the file. */
syncguard_status sg_sqlite_connect(const char *path, sqlite3 **out, syncguard_error *err);
/* Closes without a checkpoint. */
void sg_sqlite_disconnect(sg_sqlite *sqlite);

/* ---- file.c ---------------------------------------------------------------------------------- */

/* Inside the gate, before anything else: the connection is there, and its files are still those at
 * the paths. Connects if need be. Busy while that is not possible yet. */
syncguard_status sg_sqlite_ready(sg_sqlite *sqlite, syncguard_error *err);
bool sg_sqlite_in_place(const sg_sqlite *sqlite);
/* Closes the connection, without a checkpoint. */
void sg_sqlite_detach(sg_sqlite *sqlite);
/* Translates an SQLite code; busy codes become SG_SQLITE_BUSY without touching err. */
syncguard_status sg_sqlite_fail(sqlite3 *db, const char *path, int code, syncguard_error *err);
/* The prepared statement, made on first use. */
syncguard_status sg_sqlite_statement(sg_sqlite *sqlite, sg_statement which, sqlite3_stmt **out,
                                     syncguard_error *err);
/* Steps a statement that answers no rows, and resets it. */
syncguard_status sg_sqlite_do(sg_sqlite *sqlite, sg_statement which, syncguard_error *err);
syncguard_status sg_sqlite_done(sg_sqlite *sqlite, sqlite3_stmt *statement, syncguard_error *err);

/* One attempt inside the gate. immediate: an earlier one lost a race, take the write lock first. */
typedef syncguard_status (*sg_attempt)(sg_sqlite *sqlite, void *op, bool immediate,
                                       syncguard_error *err);
/* Runs attempts until one is not busy, within limits. Open transactions are rolled back. */
syncguard_status sg_sqlite_run(sg_sqlite *sqlite, const syncguard_limits *limits,
                               sg_attempt attempt, void *op, syncguard_error *err);
syncguard_status sg_sqlite_begin(sg_sqlite *sqlite, bool immediate, syncguard_error *err);

syncguard_status sg_sync_init(sg_sync *sync, syncguard_error *err);
void sg_sync_destroy(sg_sync *sync);
/* The WAL is closed: who has not synced its commit yet hears of a failure. */
void sg_sync_forget(sg_sqlite *sqlite);
/* After a write that found the disk full: empties the WAL. False if that did not work. */
bool sg_sqlite_make_room(sg_sqlite *sqlite);
/* Inside the gate, before a grant: after a failed sync nothing is granted until a checkpoint has
 * carried the WAL into the database. Fills *failures for sg_sqlite_sync. */
syncguard_status sg_sqlite_heal(sg_sqlite *sqlite, unsigned *failures, syncguard_error *err);
/* Outside the gate: makes what was committed durable. Fails if any sync failed since heal. The one
 * wait without deadline and abort: two syncs of the disk at most. */
syncguard_status sg_sqlite_sync(sg_sqlite *sqlite, unsigned failures_before, syncguard_error *err);
/* Inside the gate, after a grant was committed: descriptor for sync, checkpoint if due. */
syncguard_status sg_sqlite_settle(sg_sqlite *sqlite, syncguard_error *err);
/* Inside the gate: a checkpoint if even without acquires it is time. */
void sg_sqlite_checkpoint_late(sg_sqlite *sqlite);

/* ---- schema.c ------------------------------------------------------------------------------ */

/* Recognises the file, creates the tables in an empty one, switches to WAL. Busy if somebody else
 * is at it. */
syncguard_status sg_sqlite_recognise(sqlite3 *db, const char *path, syncguard_error *err);

/* ---- locks.c, renew.c, reads.c, examine.c: the operations ------------------------------------ */

/* Copies a text column of at most size - 1 bytes; false, and an empty text, if it is none. */
bool sg_sqlite_text(sqlite3_stmt *statement, int column, char *out, size_t size, size_t *length);
/* Internal, about a row. */
syncguard_status sg_sqlite_unreadable(const sg_sqlite *sqlite, syncguard_error *err);
/* Reads the row of a key or an id and judges it by the boot clock, read afterwards. Internal if its
 * expiry cannot be read. */
syncguard_status sg_sqlite_find(sg_sqlite *sqlite, sg_statement which, const char *text,
                                size_t length, sg_row *row, int64_t *now_ns, syncguard_error *err);
/* Reads boot_id, boot_set_ms and boot_expires_ms from three columns: how long the row may still
 * count, tolerance included; 0 or less: it is dead. False if they cannot be read. */
bool sg_sqlite_remaining_ms(const sg_sqlite *sqlite, sqlite3_stmt *statement, int column,
                            int64_t now_ns, int64_t *remaining_ms);

syncguard_status sg_sqlite_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                   syncguard_error *err);
syncguard_status sg_sqlite_release(syncguard_backend *backend, syncguard_release_op *op,
                                   syncguard_error *err);
syncguard_status sg_sqlite_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                const char *lock_id, int64_t until_ns,
                                const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_sqlite_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                   syncguard_error *err);
syncguard_status sg_sqlite_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                  syncguard_error *err);
syncguard_status sg_sqlite_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err);
syncguard_status sg_sqlite_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                     syncguard_error *err);
syncguard_status sg_sqlite_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err);
syncguard_status sg_sqlite_list(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_sqlite_examine(syncguard_backend *backend, const syncguard_limits *limits,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err);
/* Every operation begins with this: InvalidArgument in a forked child. */
syncguard_status sg_sqlite_same_process(const sg_sqlite *sqlite, syncguard_error *err);

/* ---- wake.c -------------------------------------------------------------------------------- */

syncguard_status sg_wake_init(sg_wake *wake, syncguard_error *err);
/* Opens the -wake file, or again if it was replaced, and tells all waiters. In the gate. */
syncguard_status sg_wake_open(sg_sqlite *sqlite, syncguard_error *err);
/* The file that is open is the one at the path. */
bool sg_wake_in_place(sg_sqlite *sqlite);
/* Arms key. False if this store cannot report (waiters poll). *added: it was not armed before, so
 * the caller must decide again. */
bool sg_wake_watch(sg_sqlite *sqlite, const char *key, size_t length, bool *added);
void sg_wake_unwatch(syncguard_backend *backend, const char *key, size_t length);
/* Tells other processes that key is free. */
void sg_wake_publish(sg_sqlite *sqlite, const char *key, size_t length);
/* forked: the thread was the parent's. */
void sg_wake_destroy(sg_wake *wake, bool forked);

#endif
