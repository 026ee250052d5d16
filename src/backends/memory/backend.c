/*
 * The memory backend: locks among the threads that share a handle.
 *
 * There is one entry per key that was ever granted. It is kept until the handle ends, because the
 * counter lives in it. The lock in an entry, live or expired, is also found by its id. An expired
 * lock stays until its key is taken again or cleanup removes it, as on the stores that keep rows.
 *
 * Liveness is evaluated by the clock that cannot step; the wall times beside it are only reported.
 *
 * Locking: one mutex guards everything below it and is held for one step at a time, never during a
 * system call or a callback. Entries are only added, at the head of `all`, and never move, so that
 * a listing can release the mutex between two entries.
 */
#include "backends/modules.h"

#include <stddef.h>
#include <string.h>

#include "backends/memory/table.h"
#include "syncguard/memory.h"
#include "syncguard/sys/url.h"

typedef struct entry {
    sg_memory_node by_key;
    sg_memory_node by_id; /* in its table while lock_id[0] is not NUL */
    struct entry *next;
    int64_t fence;
    int64_t expires_boot_ms;
    int64_t expires_at_ms;
    int64_t acquired_at_ms;
    char *owner; /* NULL for none */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    uint16_t key_length;
    char key[];
} entry;

typedef struct memory {
    syncguard_backend base;
    pthread_mutex_t mutex;
    uint64_t seed;
    sg_memory_table keys;
    sg_memory_table ids;
    entry *all;
} memory;

/* Entries scanned, and live ones copied, in one step of a listing. */
#define LIST_SCAN 4096
#define LIST_COPY 16

static memory *memory_of(syncguard_backend *backend)
{
    return (memory *)(void *)backend;
}

static int64_t memory_boot_ms(void)
{
    return syncguard_clock_ns() / SYNCGUARD_NS_PER_MS;
}

static entry *memory_entry_find_key(const memory *m, const char *key, size_t length, uint64_t hash)
{
    for (sg_memory_node *node = sg_memory_table_first(&m->keys, hash); node != NULL;
         node = node->next) {
        entry *e = (entry *)(void *)((char *)node - offsetof(entry, by_key));
        if (node->hash == hash && e->key_length == length && memcmp(e->key, key, length) == 0)
            return e;
    }
    return NULL;
}

static uint64_t memory_id_hash(const memory *m, const char *lock_id)
{
    return sg_memory_table_hash(lock_id, SYNCGUARD_LOCK_ID_CHARS, m->seed);
}

static entry *memory_entry_find_id(const memory *m, const char *lock_id)
{
    uint64_t hash = memory_id_hash(m, lock_id);
    for (sg_memory_node *node = sg_memory_table_first(&m->ids, hash); node != NULL;
         node = node->next) {
        entry *e = (entry *)(void *)((char *)node - offsetof(entry, by_id));
        if (node->hash == hash && memcmp(e->lock_id, lock_id, SYNCGUARD_LOCK_ID_CHARS) == 0)
            return e;
    }
    return NULL;
}

static bool memory_entry_is_live(const entry *e, int64_t now)
{
    return e->lock_id[0] != 0 && syncguard_is_live(e->expires_boot_ms, now);
}

/* Removes the lock from its entry; the counter stays. */
static void memory_entry_drop_lock(memory *m, entry *e)
{
    if (e->lock_id[0] == 0)
        return;
    sg_memory_table_remove(&m->ids, &e->by_id);
    e->lock_id[0] = '\0';
}

static entry *memory_entry_add(memory *m, const char *key, size_t length, uint64_t hash)
{
    entry *e = syncguard_malloc(sizeof *e + length + 1);
    if (e == NULL)
        return NULL;
    memset(e, 0, sizeof *e);
    memcpy(e->key, key, length);
    e->key[length] = '\0';
    e->key_length = (uint16_t)length;
    e->next = m->all;
    m->all = e;
    sg_memory_table_add(&m->keys, &e->by_key, hash);
    return e;
}

/* The label is nearly always that of the handle, so it is usually the same as in the last grant. */
static bool memory_entry_set_owner(entry *e, const char *owner)
{
    char *old = e->owner;
    if (strcmp(old != NULL ? old : "", owner) == 0)
        return true;
    char *copy = NULL;
    if (owner[0] != 0) {
        copy = syncguard_strdup(owner);
        if (copy == NULL)
            return false;
    }
    e->owner = copy;
    syncguard_free(old); /* in this order, for a child forked in between */
    return true;
}

/* The caller holds the mutex, and the key is free. Everything that can fail comes before the first
 * visible change. */
static syncguard_status memory_grant(memory *m, entry *e, syncguard_acquire_op *op, uint64_t hash,
                                     int64_t now, syncguard_error *err)
{
    int64_t wall = syncguard_wall_ms();
    int64_t expires = 0;
    syncguard_status status = syncguard_expiry(wall, op->ttl_ms, &expires, err);
    int64_t fence = 0;
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_next(e != NULL ? e->fence : 0, &fence, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (e == NULL)
        e = memory_entry_add(m, op->key, op->key_length, hash);
    if (e == NULL || !memory_entry_set_owner(e, op->owner))
        return syncguard_fail_memory(err);
    memory_entry_drop_lock(m, e);
    e->fence = fence;
    e->expires_boot_ms = now + op->ttl_ms;
    e->expires_at_ms = expires;
    e->acquired_at_ms = wall;
    memcpy(e->lock_id, op->lock_id, SYNCGUARD_LOCK_ID_SIZE);
    sg_memory_table_add(&m->ids, &e->by_id, memory_id_hash(m, e->lock_id));
    op->fence = fence;
    op->expires_at_ms = expires;
    return SYNCGUARD_OK;
}

static syncguard_status memory_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                       syncguard_error *err)
{
    memory *m = memory_of(backend);
    uint64_t hash = sg_memory_table_hash(op->key, op->key_length, m->seed);
    pthread_mutex_lock(&m->mutex);
    int64_t now = memory_boot_ms();
    entry *e = memory_entry_find_key(m, op->key, op->key_length, hash);
    syncguard_status status;
    if (e == NULL || !memory_entry_is_live(e, now)) {
        status = memory_grant(m, e, op, hash, now, err);
    } else if (memcmp(e->lock_id, op->lock_id, SYNCGUARD_LOCK_ID_CHARS) == 0) {
        op->fence = e->fence;
        op->expires_at_ms = e->expires_at_ms;
        status = SYNCGUARD_OK;
    } else {
        op->remaining_ms = syncguard_remaining_ms(e->expires_boot_ms, now);
        op->armed_ms = SYNCGUARD_ARMED_MS; /* every release goes through this handle */
        status = SYNCGUARD_LOCKED;
    }
    pthread_mutex_unlock(&m->mutex);
    return status;
}

/* Finds the live lock with an id. NULL: *reason tells why there is none. */
static entry *memory_entry_find_live(const memory *m, const char *lock_id, int64_t now,
                                     syncguard_event_reason *reason)
{
    entry *e = memory_entry_find_id(m, lock_id);
    *reason = SYNCGUARD_REASON_NONE;
    if (e != NULL && memory_entry_is_live(e, now))
        return e;
    *reason = e != NULL ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
    return NULL;
}

static syncguard_status memory_release(syncguard_backend *backend, syncguard_release_op *op,
                                       syncguard_error *err)
{
    memory *m = memory_of(backend);
    (void)err;
    op->key_length = 0;
    pthread_mutex_lock(&m->mutex);
    entry *e = memory_entry_find_live(m, op->lock_id, memory_boot_ms(), &op->reason);
    if (e != NULL) {
        memcpy(op->key, e->key, (size_t)e->key_length + 1);
        op->key_length = e->key_length;
        memory_entry_drop_lock(m, e);
    }
    pthread_mutex_unlock(&m->mutex);
    return e != NULL ? SYNCGUARD_OK : SYNCGUARD_ABSENT;
}

static syncguard_status memory_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                      syncguard_error *err)
{
    memory *m = memory_of(backend);
    pthread_mutex_lock(&m->mutex);
    op->first_sent_ns = syncguard_clock_ns();
    int64_t now = op->first_sent_ns / SYNCGUARD_NS_PER_MS;
    entry *e = memory_entry_find_live(m, op->lock_id, now, &op->reason);
    syncguard_status status = SYNCGUARD_ABSENT;
    if (e != NULL)
        status = syncguard_expiry(syncguard_wall_ms(), op->ttl_ms, &op->expires_at_ms, err);
    bool shortened = false;
    if (status == SYNCGUARD_OK) {
        shortened = now + op->ttl_ms < e->expires_boot_ms;
        e->expires_boot_ms = now + op->ttl_ms;
        e->expires_at_ms = op->expires_at_ms;
    }
    pthread_mutex_unlock(&m->mutex);
    if (shortened) /* the key of an entry never changes */
        syncguard_backend_key_changed(backend, e->key, e->key_length);
    return status;
}

static syncguard_status memory_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                         syncguard_error *err)
{
    memory *m = memory_of(backend);
    uint64_t hash = sg_memory_table_hash(op->key, op->key_length, m->seed);
    (void)err;
    op->dead_lock_id[0] = '\0';
    pthread_mutex_lock(&m->mutex);
    int64_t now = memory_boot_ms();
    entry *e = memory_entry_find_key(m, op->key, op->key_length, hash);
    op->locked = e != NULL && memory_entry_is_live(e, now);
    if (e != NULL && !op->locked && e->lock_id[0] != 0) {
        memcpy(op->dead_lock_id, e->lock_id, SYNCGUARD_LOCK_ID_SIZE);
        op->dead_expires_at_ms = e->expires_at_ms;
        op->dead_for_ms = now - e->expires_boot_ms;
    }
    pthread_mutex_unlock(&m->mutex);
    return SYNCGUARD_OK;
}

/* The caller holds the mutex. The fence comes from syncguard_fence_next, so formatting it
 * succeeds. */
static void memory_record_fill(const entry *e, int64_t now, syncguard_record *record)
{
    memcpy(record->key, e->key, (size_t)e->key_length + 1);
    memcpy(record->lock_id, e->lock_id, SYNCGUARD_LOCK_ID_SIZE);
    record->owner[0] = '\0';
    if (e->owner != NULL)
        memcpy(record->owner, e->owner, strlen(e->owner) + 1);
    (void)syncguard_fence_format(e->fence, record->fence, NULL);
    record->expires_at_ms = e->expires_at_ms;
    record->acquired_at_ms = e->acquired_at_ms;
    record->now_ms = e->expires_at_ms - (e->expires_boot_ms - now);
}

static syncguard_status memory_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                      syncguard_error *err)
{
    memory *m = memory_of(backend);
    (void)err;
    pthread_mutex_lock(&m->mutex);
    entry *e;
    if (op->lock_id != NULL)
        e = memory_entry_find_id(m, op->lock_id);
    else
        e = memory_entry_find_key(m, op->key, op->key_length,
                                  sg_memory_table_hash(op->key, op->key_length, m->seed));
    int64_t now = memory_boot_ms();
    syncguard_status status = SYNCGUARD_ABSENT;
    if (e != NULL && memory_entry_is_live(e, now)) {
        memory_record_fill(e, now, &op->record);
        status = SYNCGUARD_OK;
    }
    pthread_mutex_unlock(&m->mutex);
    return status;
}

/* Whether a listing of expired locks, or of live ones, contains this entry. */
static bool memory_entry_is_listed(const entry *e, bool expired, int64_t now)
{
    if (!expired)
        return memory_entry_is_live(e, now);
    return e->lock_id[0] != 0 && now - e->expires_boot_ms > SYNCGUARD_CLEANUP_GUARD_MS;
}

/* Copies the next locks and returns their number. *at becomes the entry to continue with. */
static size_t memory_list_copy_page(memory *m, bool expired, entry **at, syncguard_record *records)
{
    int64_t now = memory_boot_ms();
    pthread_mutex_lock(&m->mutex);
    size_t found = 0;
    for (int scanned = 0; *at != NULL && scanned < LIST_SCAN && found < LIST_COPY; scanned++) {
        if (memory_entry_is_listed(*at, expired, now))
            memory_record_fill(*at, now, &records[found++]);
        *at = (*at)->next;
    }
    pthread_mutex_unlock(&m->mutex);
    return found;
}

static syncguard_status memory_list_walk(syncguard_backend *backend, bool expired,
                                         const syncguard_limits *limits, syncguard_record_fn fn,
                                         void *context, syncguard_error *err)
{
    memory *m = memory_of(backend);
    syncguard_limits page = *limits;
    int64_t span_ns = syncguard_limits_left_ns(limits);
    syncguard_record *records = syncguard_malloc(LIST_COPY * sizeof *records);
    if (records == NULL)
        return syncguard_fail_memory(err);
    pthread_mutex_lock(&m->mutex);
    entry *at = m->all;
    pthread_mutex_unlock(&m->mutex);
    syncguard_status status = SYNCGUARD_OK;
    while (at != NULL && status == SYNCGUARD_OK) {
        status = syncguard_limits_check(&page, err);
        size_t count = status == SYNCGUARD_OK ? memory_list_copy_page(m, expired, &at, records) : 0;
        for (size_t i = 0; i < count; i++) {
            if (!fn(context, &records[i]))
                goto done;
        }
        page = syncguard_limits_from_now(limits, span_ns);
    }
done:
    syncguard_free(records);
    return status;
}

static syncguard_status memory_list(syncguard_backend *backend, const syncguard_limits *limits,
                                    syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return memory_list_walk(backend, false, limits, fn, context, err);
}

static syncguard_status memory_list_expired(syncguard_backend *backend,
                                            const syncguard_limits *limits, syncguard_record_fn fn,
                                            void *context, syncguard_error *err)
{
    return memory_list_walk(backend, true, limits, fn, context, err);
}

/* An acquire is over when its caller returns, so none can take effect after this. */
static syncguard_status memory_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                    const char *lock_id, int64_t until_ns,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    memory *m = memory_of(backend);
    (void)key;
    (void)key_length;
    (void)until_ns;
    (void)limits;
    (void)err;
    pthread_mutex_lock(&m->mutex);
    entry *e = memory_entry_find_id(m, lock_id);
    if (e != NULL)
        memory_entry_drop_lock(m, e);
    pthread_mutex_unlock(&m->mutex);
    return SYNCGUARD_OK;
}

static syncguard_status memory_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                       syncguard_error *err)
{
    memory *m = memory_of(backend);
    (void)err;
    pthread_mutex_lock(&m->mutex);
    entry *e = memory_entry_find_id(m, op->lock_id);
    if (e != NULL && e->key_length == op->key_length &&
        memcmp(e->key, op->key, op->key_length) == 0 && e->expires_at_ms == op->expires_at_ms &&
        memory_boot_ms() - e->expires_boot_ms > SYNCGUARD_CLEANUP_GUARD_MS)
        memory_entry_drop_lock(m, e);
    pthread_mutex_unlock(&m->mutex);
    return SYNCGUARD_OK;
}

static void memory_entries_free(memory *m)
{
    entry *e;
    while ((e = m->all) != NULL) {
        m->all = e->next;
        syncguard_free(e->owner);
        syncguard_free(e);
    }
    sg_memory_table_free(&m->keys);
    sg_memory_table_free(&m->ids);
}

static syncguard_status memory_tables_init(memory *m, syncguard_error *err)
{
    /* A user who chooses keys must not be able to put them all into one bucket. */
    m->seed = (uint64_t)syncguard_clock_ns() ^ ((uint64_t)(uintptr_t)m << 20);
    m->all = NULL;
    if (!sg_memory_table_init(&m->keys))
        return syncguard_fail_memory(err);
    if (!sg_memory_table_init(&m->ids)) {
        sg_memory_table_free(&m->keys);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

/* The mutex may be held by a thread that does not exist in the child. */
static syncguard_status memory_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    memory *m = memory_of(backend);
    if (pthread_mutex_init(&m->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    memory_entries_free(m);
    return memory_tables_init(m, err);
}

static void memory_destroy(syncguard_backend *backend)
{
    memory *m = memory_of(backend);
    memory_entries_free(m);
    pthread_mutex_destroy(&m->mutex);
    syncguard_backend_fini(backend);
    syncguard_free(m);
}

static const syncguard_backend_ops OPS = {
    .acquire = memory_acquire,
    .release = memory_release,
    .extend = memory_extend,
    .is_locked = memory_is_locked,
    .lookup = memory_lookup,
    .list = memory_list,
    .list_expired = memory_list_expired,
    .undo = memory_undo,
    .cleanup = memory_cleanup,
    .after_fork = memory_after_fork,
    .destroy = memory_destroy,
};

static syncguard_status memory_create(const syncguard_options *options, syncguard_backend **out,
                                      syncguard_error *err)
{
    static const syncguard_capabilities capabilities = {
        .backend = "memory",
        .supports_fencing = true,
        .time_authority = SYNCGUARD_TIME_SERVER,
        .wakes_waiters = true,
        .keeps_expired = true,
        .works_in_child = true,
    };
    memory *m = syncguard_calloc(1, sizeof *m);
    if (m == NULL)
        return syncguard_fail_memory(err);
    syncguard_status status = memory_tables_init(m, err);
    if (status != SYNCGUARD_OK)
        goto done;
    status = SYNCGUARD_E_OUT_OF_MEMORY;
    if (pthread_mutex_init(&m->mutex, NULL) != 0) {
        syncguard_fail_memory(err);
        goto done;
    }
    status = syncguard_backend_init(&m->base, &OPS, &capabilities, options, err);
    if (status != SYNCGUARD_OK) {
        pthread_mutex_destroy(&m->mutex);
        goto done;
    }
    *out = &m->base;
    return SYNCGUARD_OK;
done:
    memory_entries_free(m);
    syncguard_free(m);
    return status;
}

syncguard_status syncguard_memory_open(const syncguard_options *options, syncguard_backend **out,
                                       syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out must be given");
    *out = NULL;
    syncguard_options known = SYNCGUARD_OPTIONS_INIT;
    syncguard_status status = syncguard_options_read(options, &known, err);
    return status == SYNCGUARD_OK ? memory_create(&known, out, err) : status;
}

static syncguard_status memory_open_url(const char *text, const syncguard_options *options,
                                        syncguard_backend **out, syncguard_error *err)
{
    syncguard_options known = SYNCGUARD_OPTIONS_INIT;
    syncguard_status status = syncguard_options_read(options, &known, err);
    syncguard_url *url = NULL;
    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    if (status == SYNCGUARD_OK &&
        ((url->hosts != NULL && url->hosts[0] != 0) || url->user != NULL || url->path[0] != 0))
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "a memory: URL has neither a host nor a path");
    if (status == SYNCGUARD_OK)
        status = syncguard_url_common(url, &known, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    if (status == SYNCGUARD_OK)
        status = memory_create(&known, out, err);
    syncguard_url_free(url);
    return status;
}

static const char *const SCHEMES[] = {"memory", NULL};

const syncguard_module sg_memory_module = {SYNCGUARD_ABI, "memory", SCHEMES, memory_open_url, NULL};
