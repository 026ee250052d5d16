/*
 * Opening and closing a handle, the op table, and fork.
 *
 * Fork. POSIX locks are not inherited, while SQLite's table of them, which lives
 * in the memory of the process, is copied: in a child it lists locks that the
 * child does not have, for its old connections and for new ones. So the process
 * that first opened a database is remembered for good, and a process with
 * another id is refused until it has called exec. The core calls after_fork before
 * any other operation, so no operation checks it again. `first_pid` and the list
 * of attached handles (see attach.c) are the only mutable globals of this library.
 */
#include "backend.h"

#include <stdio.h>
#include <unistd.h>

#include "errors.h"
#include "operations.h"
#include "options.h"

/* Closing makes a checkpoint of a longer WAL, so that the next start need not read all of it. It
 * does not wait for other processes. */
#define CLOSE_FRAMES 64

/* ---- fork ---- */

static _Atomic pid_t first_pid;

static syncguard_status sqlite_fork_refuse(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the sqlite backend cannot be used in a process that was forked from "
                          "one that used it; open it only there, or exec first");
}

static syncguard_status sqlite_process_claim(syncguard_error *err)
{
    pid_t nobody = 0;
    pid_t self = getpid();
    if (atomic_compare_exchange_strong(&first_pid, &nobody, self) || nobody == self)
        return SYNCGUARD_OK;
    return sqlite_fork_refuse(err);
}

static syncguard_status sqlite_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    (void)backend;
    return sqlite_fork_refuse(err);
}

/* ---- the op table ---- */

static void sqlite_unwatch(syncguard_backend *backend, const char *key, size_t key_length)
{
    sg_sqlite_notify_unwatch(&sg_sqlite_of(backend)->notify, key, key_length);
}

/*
 * In a child the connection is abandoned: closing it would write to files of the parent. No
 * descriptor is closed either: the application may have closed them all and opened others under the
 * same numbers.
 */
static void sqlite_destroy(syncguard_backend *backend)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    bool forked = sqlite->pid != getpid();
    sg_sqlite_notify_destroy(&sqlite->notify, forked);
    if (!forked) {
        if (sqlite->wal.frames > CLOSE_FRAMES && sg_sqlite_in_place(sqlite))
            (void)sqlite3_wal_checkpoint_v2(sqlite->connection.db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                            NULL, NULL);
        sg_sqlite_detach(sqlite);
        sg_sqlite_wal_destroy(&sqlite->wal);
        syncguard_gate_destroy(&sqlite->gate);
    }
    syncguard_backend_fini(backend);
    syncguard_free(sqlite);
}

static const syncguard_backend_ops OPS = {
    .acquire = sg_sqlite_acquire,
    .release = sg_sqlite_release,
    .extend = sg_sqlite_extend,
    .extend_many = sg_sqlite_extend_many,
    .is_locked = sg_sqlite_is_locked,
    .lookup = sg_sqlite_lookup,
    .list = sg_sqlite_list,
    .list_expired = sg_sqlite_list_expired,
    .undo = sg_sqlite_undo,
    .cleanup = sg_sqlite_cleanup,
    .unwatch = sqlite_unwatch,
    .diagnose = sg_sqlite_diagnose,
    .after_fork = sqlite_after_fork,
    .destroy = sqlite_destroy,
};

static const syncguard_capabilities CAPABILITIES = {
    .backend = "sqlite",
    .supports_fencing = true,
    .time_authority = SYNCGUARD_TIME_SERVER,
    .wakes_waiters = true,
    .is_shared = true,
    .keeps_expired = true,
    .works_in_child = false,
};

/* ---- opening ---- */

/* Initializes everything that sqlite_destroy frees. The caller has zeroed *sqlite. On failure
 * nothing needs undoing. */
static syncguard_status sqlite_backend_init(sg_sqlite *sqlite, const sg_sqlite_config *config,
                                            syncguard_error *err)
{
    const char *path = sqlite->connection.path;
    sqlite->pid = getpid();
    sqlite->durable = config->durable;
    sqlite->mode = config->mode;
    sqlite->old_shm = -1;
    syncguard_status status =
        syncguard_backend_init(&sqlite->base, &OPS, &CAPABILITIES, &config->common, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = syncguard_gate_init(&sqlite->gate, 1, err);
    if (status != SYNCGUARD_OK)
        goto no_gate;
    status = sg_sqlite_wal_init(&sqlite->wal, path, err);
    if (status != SYNCGUARD_OK)
        goto no_wal;
    status = sg_sqlite_notify_init(&sqlite->notify, &sqlite->base, path, err);
    if (status == SYNCGUARD_OK)
        return SYNCGUARD_OK;
    sg_sqlite_wal_destroy(&sqlite->wal);
no_wal:
    syncguard_gate_destroy(&sqlite->gate);
no_gate:
    syncguard_backend_fini(&sqlite->base);
    return status;
}

static syncguard_status sqlite_backend_open(const sg_sqlite_config *config, syncguard_backend **out,
                                            syncguard_error *err)
{
    syncguard_status status = sqlite_process_claim(err);
    if (status == SYNCGUARD_OK && sqlite3_threadsafe() == 0)
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "this SQLite library was built without thread safety");
    if (status != SYNCGUARD_OK)
        return status;
    sg_sqlite *sqlite = syncguard_calloc(1, sizeof *sqlite);
    if (sqlite == NULL)
        return syncguard_fail_memory(err);
    status = sg_sqlite_boot_read(&sqlite->boot, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_path_resolve(config->path, config->mode, sqlite->connection.path, err);
    snprintf(sqlite->shm_path, sizeof sqlite->shm_path, "%s-shm", sqlite->connection.path);
    if (status == SYNCGUARD_OK)
        status = sqlite_backend_init(sqlite, config, err);
    if (status != SYNCGUARD_OK) {
        syncguard_free(sqlite);
        return status;
    }
    status = sg_sqlite_attach(sqlite, err);
    /* If it is busy, the first operation connects, within its limits. */
    if (status != SYNCGUARD_OK && status != SG_SQLITE_BUSY) {
        sqlite_destroy(&sqlite->base);
        return status;
    }
    *out = &sqlite->base;
    return SYNCGUARD_OK;
}

syncguard_status syncguard_sqlite_open(const syncguard_sqlite_options *sqlite_options,
                                       const syncguard_options *options, syncguard_backend **out,
                                       syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    sg_sqlite_config config;
    syncguard_status status = sg_sqlite_config_from_options(sqlite_options, options, &config, err);
    return status == SYNCGUARD_OK ? sqlite_backend_open(&config, out, err) : status;
}

/* ---- the module ---- */

static syncguard_status sqlite_open_url(const char *url, const syncguard_options *options,
                                        syncguard_backend **out, syncguard_error *err)
{
    sg_sqlite_config config;
    *out = NULL;
    syncguard_status status = sg_sqlite_config_from_url(url, options, &config, err);
    return status == SYNCGUARD_OK ? sqlite_backend_open(&config, out, err) : status;
}

static const char *const SCHEMES[] = {"sqlite", NULL};

SYNCGUARD_API const syncguard_module syncguard_module_sqlite;
SYNCGUARD_API const syncguard_module syncguard_module_sqlite = {
    .abi = SYNCGUARD_ABI,
    .name = "sqlite",
    .schemes = SCHEMES,
    .open = sqlite_open_url,
    .setup = NULL,
};

syncguard_status syncguard_sqlite_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_sqlite, err);
}
