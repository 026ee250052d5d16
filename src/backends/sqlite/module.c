/*
 * Opening and closing a handle, the op table, and the rule about fork.
 *
 * Fork. POSIX locks are not inherited, while SQLite's table of them, which lives
 * in the process's memory, is copied: in a child it speaks of locks that the
 * child does not have, for its old connections and for new ones. So the process
 * that first opened a database is remembered for good, and a process with
 * another id is refused until it has called exec. `first_pid` and the list of
 * connected handles (see file.c) are the only mutable globals of this library.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "syncguard/sys/options.h"
#include "syncguard/sys/url.h"

static _Atomic pid_t first_pid;

static syncguard_status refuse_fork(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the sqlite backend cannot be used in a process that was forked from "
                          "one that used it; open it only there, or exec first");
}

syncguard_status sg_sqlite_same_process(const sg_sqlite *sqlite, syncguard_error *err)
{
    return sqlite->pid == getpid() ? SYNCGUARD_OK : refuse_fork(err);
}

static syncguard_status claim_process(syncguard_error *err)
{
    pid_t nobody = 0;
    pid_t self = getpid();
    if (atomic_compare_exchange_strong(&first_pid, &nobody, self) || nobody == self)
        return SYNCGUARD_OK;
    return refuse_fork(err);
}

static syncguard_status after_fork(syncguard_backend *backend, syncguard_error *err)
{
    return sg_sqlite_same_process(sg_sqlite_of(backend), err);
}

/*
 * In a child the connection is forgotten: closing it would write to files of the
 * parent. Nor is any descriptor closed: the application may have closed them all
 * and opened others under the same numbers.
 */
static void destroy(syncguard_backend *backend)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    bool forked = sqlite->pid != getpid();
    sg_wake_destroy(&sqlite->wake, forked);
    if (!forked) {
        if (sqlite->wal_frames > SG_CHECKPOINT_FRAMES_CLOSE && sg_sqlite_in_place(sqlite))
            (void)sqlite3_wal_checkpoint_v2(sqlite->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                                            NULL);
        sg_sqlite_detach(sqlite);
        sg_sync_destroy(&sqlite->sync);
        syncguard_gate_destroy(&sqlite->gate);
    }
    syncguard_free(sqlite->path);
    syncguard_free(sqlite->wal_path);
    syncguard_free(sqlite->shm_path);
    syncguard_free(sqlite->wake_path);
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
    .undo = sg_sqlite_undo,
    .cleanup = sg_sqlite_cleanup,
    .unwatch = sg_wake_unwatch,
    .watch_lasts = true,
    .examine = sg_sqlite_examine,
    .after_fork = after_fork,
    .destroy = destroy,
};

static const syncguard_capabilities CAPABILITIES = {
    .backend = "sqlite",
    .supports_fencing = true,
    .time_authority = SYNCGUARD_TIME_SERVER,
};

/* ---- opening ------------------------------------------------------------------------------- */

static char *with_suffix(const char *path, const char *suffix)
{
    size_t size = strlen(path) + strlen(suffix) + 1;
    char *out = syncguard_malloc(size);
    if (out != NULL)
        snprintf(out, size, "%s%s", path, suffix);
    return out;
}

static syncguard_status name_files(sg_sqlite *sqlite, const char *given, syncguard_error *err)
{
    char path[SG_SQLITE_MAX_PATH_BYTES + 1];
    syncguard_status status = sg_sqlite_resolve(given, path, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite->path = syncguard_strdup(path);
    sqlite->wal_path = with_suffix(path, "-wal");
    sqlite->shm_path = with_suffix(path, "-shm");
    sqlite->wake_path = with_suffix(path, "-wake");
    if (sqlite->path == NULL || sqlite->wal_path == NULL || sqlite->shm_path == NULL ||
        sqlite->wake_path == NULL)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

/* "./" keeps ":memory:" and "file:" from meaning something else to SQLite. */
static syncguard_status plain_path(const char *path, char *out, size_t size, syncguard_error *err)
{
    if (path == NULL || path[0] == '\0')
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "sqlite: the path of the file is missing");
    size_t length = strlen(path);
    if (length + 3 > size)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "sqlite: the path is longer than %zu bytes", size - 3);
    if (path[length - 1] == '/')
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s: is the name of a folder, not of a file", path);
    snprintf(out, size, "%s%s", path[0] == '/' ? "" : "./", path);
    return SYNCGUARD_OK;
}

static syncguard_status open_backend(const char *given, bool durable,
                                     const syncguard_options *options, syncguard_backend **out,
                                     syncguard_error *err)
{
    char path[SG_SQLITE_MAX_PATH_BYTES + 1];
    sg_sqlite *sqlite = NULL;
    syncguard_status status = plain_path(given, path, sizeof path, err);
    if (status == SYNCGUARD_OK)
        status = claim_process(err);
    if (status == SYNCGUARD_OK && sqlite3_threadsafe() == 0)
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "this SQLite library was built without thread safety");
    if (status != SYNCGUARD_OK)
        return status;
    sqlite = syncguard_calloc(1, sizeof *sqlite);
    if (sqlite == NULL)
        return syncguard_fail_memory(err);
    sqlite->pid = getpid();
    sqlite->durable = durable;
    sqlite->wal_fd = -1;
    sqlite->old_shm = -1;

    status = syncguard_backend_init(&sqlite->base, &OPS, &CAPABILITIES, options, err);
    if (status != SYNCGUARD_OK)
        goto no_base;
    status = syncguard_gate_init(&sqlite->gate, 1, err);
    if (status != SYNCGUARD_OK)
        goto no_gate;
    status = sg_sync_init(&sqlite->sync, err);
    if (status != SYNCGUARD_OK)
        goto no_sync;
    status = sg_wake_init(&sqlite->wake, err);
    if (status != SYNCGUARD_OK)
        goto no_wake;

    status = sg_boot_read(&sqlite->boot, err);
    if (status == SYNCGUARD_OK)
        status = name_files(sqlite, path, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_ready(sqlite, err);
    /* Busy: the first operation connects, within its limits. */
    if (status != SYNCGUARD_OK && status != SG_SQLITE_BUSY) {
        destroy(&sqlite->base);
        return status;
    }
    *out = &sqlite->base;
    return SYNCGUARD_OK;

no_wake:
    sg_sync_destroy(&sqlite->sync);
no_sync:
    syncguard_gate_destroy(&sqlite->gate);
no_gate:
    syncguard_backend_fini(&sqlite->base);
no_base:
    syncguard_free(sqlite);
    return status;
}

void syncguard_sqlite_options_init(syncguard_sqlite_options *options, size_t size)
{
    static const syncguard_sqlite_options defaults = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

syncguard_status syncguard_sqlite_open(const syncguard_sqlite_options *sqlite_options,
                                       const syncguard_options *options, syncguard_backend **out,
                                       syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_options common;
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    syncguard_status status =
        syncguard_struct_read(sqlite_options, &own, sizeof own, sizeof own, "sqlite_options", err);
    if (status == SYNCGUARD_OK && own.durability != SYNCGUARD_SQLITE_FULL &&
        own.durability != SYNCGUARD_SQLITE_NORMAL)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "durability is neither full nor normal");
    if (status == SYNCGUARD_OK)
        status = syncguard_options_read(options, &common, err);
    if (status != SYNCGUARD_OK)
        return status;
    return open_backend(own.path, own.durability == SYNCGUARD_SQLITE_FULL, &common, out, err);
}

/* ---- the module ---------------------------------------------------------------------------- */

static syncguard_status read_url(syncguard_url *url, syncguard_options *common, bool *durable,
                                 syncguard_error *err)
{
    static const char *const words[] = {"full", "normal", NULL};
    int index = 0;
    if (url->user != NULL || url->password != NULL || (url->hosts != NULL && url->hosts[0] != '\0'))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "sqlite: the URL names a host; write sqlite:/path/to/file");
    syncguard_status status = syncguard_url_common(url, common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_choice(url, "durability", words, &index, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    *durable = index == 0;
    return status;
}

static syncguard_status open_url(const char *text, const syncguard_options *options,
                                 syncguard_backend **out, syncguard_error *err)
{
    syncguard_url *url = NULL;
    syncguard_options common;
    bool durable = true;
    *out = NULL;
    syncguard_status status = syncguard_options_read(options, &common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    if (status == SYNCGUARD_OK)
        status = read_url(url, &common, &durable, err);
    if (status == SYNCGUARD_OK)
        status = open_backend(url->path, durable, &common, out, err);
    syncguard_url_free(url);
    return status;
}

static const char *const SCHEMES[] = {"sqlite", NULL};

SYNCGUARD_API const syncguard_module syncguard_module_sqlite;
SYNCGUARD_API const syncguard_module syncguard_module_sqlite = {
    .abi = SYNCGUARD_ABI,
    .name = "sqlite",
    .schemes = SCHEMES,
    .open = open_url,
    .setup = NULL,
};

syncguard_status syncguard_sqlite_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_sqlite, err);
}
