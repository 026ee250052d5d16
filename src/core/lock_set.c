/*
 * Several keys, all or none: see syncguard/lock_set.h. A set is an array of ordinary lock handles,
 * acquired one after the other in the order of their keys.
 *
 * Losses: each lock of a set with on_lost or abort_on_lost reports its loss to the set
 * (lock_set_tell_loss), which passes the first one on. `phase` decides: while the set is being
 * acquired, a loss makes the acquire begin again; once the set is handed out, the loss is passed
 * on; after the first one, or once disposing has begun, no loss is passed on.
 */
#include "syncguard/lock_set.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "lock_acquire.h"
#include "lock_state.h"
#include "operations.h"

/* How long an acquire may still release its keys after its deadline. */
#define LATE_RELEASE_MS 250

enum { ACQUIRING, LOST_EARLY, HANDED_OUT, TOLD };

struct syncguard_lock_set {
    atomic_int phase;
    syncguard_lost_fn on_lost;
    void *on_lost_context;
    syncguard_abort *abort_on_lost;
    size_t count;
    syncguard_lock *locks[]; /* by key; NULL: not acquired yet */
};

/* One call of lock_set_acquire. */
typedef struct acquisition {
    syncguard_backend *backend;
    syncguard_lock_options options; /* of each lock */
    int64_t max_hold_ms;            /* of several locks, counted once all are locked; 0: none */
    bool waits;
    int64_t deadline_ns;
    size_t count;
    char (*keys)[SYNCGUARD_KEY_SIZE]; /* normalized, sorted, all different */
    syncguard_lock_set *set;
} acquisition;

/* ---- keys ---- */

static int lock_set_compare_keys(const void *a, const void *b)
{
    return strcmp(a, b); /* byte order, whatever the locale is */
}

static syncguard_status lock_set_read_keys(acquisition *a, const char *const *keys, size_t count,
                                           syncguard_error *err)
{
    if (keys == NULL || count == 0 || count > SYNCGUARD_LOCK_SET_MAX)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "a set has 1 to %d keys",
                              SYNCGUARD_LOCK_SET_MAX);
    a->keys = syncguard_calloc(count, sizeof *a->keys);
    if (a->keys == NULL)
        return syncguard_fail_memory(err);
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        syncguard_status status = sg_key_read(a->backend, keys[i], a->keys[i], &length, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    qsort(a->keys, count, sizeof *a->keys, lock_set_compare_keys);
    size_t kept = 0;
    for (size_t i = 1; i < count; i++) {
        if (strcmp(a->keys[i], a->keys[kept]) != 0 && ++kept != i)
            memcpy(a->keys[kept], a->keys[i], sizeof *a->keys);
    }
    a->count = kept + 1;
    return SYNCGUARD_OK;
}

/* ---- losses ---- */

static void lock_set_tell_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    syncguard_lock_set *set = context;
    int phase = ACQUIRING;
    if (atomic_compare_exchange_strong(&set->phase, &phase, LOST_EARLY))
        return;
    phase = HANDED_OUT;
    if (!atomic_compare_exchange_strong(&set->phase, &phase, TOLD))
        return;
    syncguard_abort_trigger(set->abort_on_lost);
    if (set->on_lost != NULL)
        set->on_lost(set->on_lost_context, lock, reason);
}

/* ---- acquire ---- */

static int64_t lock_set_dispose_deadline(const syncguard_backend *backend)
{
    return syncguard_clock_after(syncguard_clock_ns(), sg_dispose_timeout_ms(backend));
}

/*
 * Releases the keys of an acquire that failed. The caller never held them, so no minimum hold
 * applies. After a failure of the store or an abort the background thread releases them. After a
 * timeout they are released before the call returns, unless the store is slow.
 */
static void lock_set_give_back(acquisition *a, syncguard_status status)
{
    syncguard_lock_set *set = a->set;
    bool over = status == SYNCGUARD_E_ACQUISITION_TIMEOUT;
    int64_t deadline_ns = over ? syncguard_clock_after(syncguard_clock_ns(), LATE_RELEASE_MS)
                               : lock_set_dispose_deadline(a->backend);
    for (size_t i = set->count; i-- > 0;) {
        if (set->locks[i] == NULL)
            continue;
        atomic_store(&set->locks[i]->keep_until_ns, 0);
        if (status < SYNCGUARD_OK && !over)
            sg_lock_give_back(set->locks[i]);
        else
            sg_lock_dispose_until(set->locks[i], "scope", deadline_ns);
        set->locks[i] = NULL;
    }
    atomic_store(&set->phase, ACQUIRING);
}

static syncguard_status lock_set_fail_timeout(const acquisition *a, size_t index,
                                              syncguard_error *err)
{
    syncguard_fail(err, SYNCGUARD_E_ACQUISITION_TIMEOUT, NULL,
                   "gave up: the time was over before all %zu keys were locked", a->count);
    sg_error_key(a->backend, err, a->keys[index], strlen(a->keys[index]));
    return SYNCGUARD_E_ACQUISITION_TIMEOUT;
}

static syncguard_status lock_set_acquire_key(acquisition *a, size_t index, syncguard_error *err)
{
    syncguard_lock **out = &a->set->locks[index];
    if (!a->waits)
        return syncguard_lock_try(a->backend, a->keys[index], &a->options, out, err);
    if (a->deadline_ns != SYNCGUARD_NO_DEADLINE) {
        int64_t left_ns = a->deadline_ns - syncguard_clock_ns();
        if (left_ns <= 0)
            return lock_set_fail_timeout(a, index, err);
        a->options.timeout_ms = (left_ns - 1) / SYNCGUARD_NS_PER_MS + 1;
    }
    return syncguard_lock_acquire(a->backend, a->keys[index], &a->options, out, err);
}

/* Extends a lock to its full TTL, within the deadlines of the acquire and of one operation. */
static syncguard_status lock_set_refresh_key(acquisition *a, size_t index, syncguard_error *err)
{
    int64_t most_ns =
        syncguard_clock_after(syncguard_clock_ns(), a->backend->core->options.timeout_ms);
    bool last = a->waits && a->deadline_ns < most_ns;
    syncguard_limits limits = {last ? a->deadline_ns : most_ns, a->options.abort_object};
    syncguard_status status =
        sg_lock_extend(a->set->locks[index], a->options.ttl_ms, &limits, NULL, err);
    if (last && status == SYNCGUARD_E_NETWORK_TIMEOUT)
        return lock_set_fail_timeout(a, index, err);
    return status;
}

/* Called after all are locked: the first locks have used up a part of their leases while the caller
 * waited for the others. ABSENT: one was lost meanwhile. */
static syncguard_status lock_set_refresh(acquisition *a, syncguard_error *err)
{
    int64_t ttl_ms = a->options.ttl_ms;
    for (size_t i = 0; i < a->count; i++) {
        syncguard_lock *lock = a->set->locks[i];
        syncguard_status status = SYNCGUARD_OK;
        if (!a->options.auto_extend && syncguard_lock_remaining_ms(lock) < ttl_ms - ttl_ms / 10)
            status = lock_set_refresh_key(a, i, err);
        if (status == SYNCGUARD_OK && !syncguard_lock_held(lock))
            status = SYNCGUARD_ABSENT;
        if (status != SYNCGUARD_OK)
            return status;
    }
    return SYNCGUARD_OK;
}

/* From here on other threads may report a loss or dispose of the set. ABSENT: one was lost. */
static syncguard_status lock_set_hand_out(acquisition *a, syncguard_lock_set **out)
{
    int64_t min_hold_ms = a->options.min_hold_ms;
    int64_t until_ns = syncguard_clock_after(syncguard_clock_ns(), min_hold_ms);
    for (size_t i = 0; i < a->count && min_hold_ms > 0; i++)
        atomic_store(&a->set->locks[i]->keep_until_ns, until_ns);
    int64_t end_ns = syncguard_clock_after(syncguard_clock_ns(), a->max_hold_ms);
    for (size_t i = 0; i < a->count && a->max_hold_ms > 0; i++)
        atomic_store(&a->set->locks[i]->hold_end_ns, end_ns);
    *out = a->set;
    int phase = ACQUIRING;
    if (atomic_compare_exchange_strong(&a->set->phase, &phase, HANDED_OUT)) {
        a->set = NULL;
        return SYNCGUARD_OK;
    }
    *out = NULL;
    return SYNCGUARD_ABSENT;
}

/* One round through all keys. ABSENT: a key was lost before the last one was locked. */
static syncguard_status lock_set_acquire_round(acquisition *a, syncguard_lock_set **out,
                                               syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    for (size_t i = 0; i < a->count && status == SYNCGUARD_OK; i++)
        status = lock_set_acquire_key(a, i, err);
    if (status == SYNCGUARD_OK && a->count > 1)
        status = lock_set_refresh(a, err);
    if (status == SYNCGUARD_OK)
        status = lock_set_hand_out(a, out);
    if (status != SYNCGUARD_OK)
        lock_set_give_back(a, status);
    return status;
}

/* The maximum hold of several locks begins when all are locked: the first must not end while the
 * caller waits for the last. No TTL is longer than the maximum hold, so no lease ends after a hold
 * that begins later. */
static void lock_set_defer_max_hold(acquisition *a)
{
    syncguard_lock_options *options = &a->options;
    if (a->count == 1 || !options->auto_extend || options->max_hold_ms == 0)
        return;
    a->max_hold_ms = options->max_hold_ms;
    options->max_hold_ms = 0;
    if (options->ttl_ms > a->max_hold_ms)
        options->ttl_ms = a->max_hold_ms;
}

static syncguard_status lock_set_prepare(acquisition *a, const syncguard_lock_options *given,
                                         syncguard_error *err)
{
    syncguard_status status = sg_lock_options_read(given, &a->options, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (a->options.slots != 0 && a->count > 1)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "slots need a set of one key");
    lock_set_defer_max_hold(a);
    a->deadline_ns = SYNCGUARD_NO_DEADLINE;
    if (a->options.timeout_ms > 0)
        a->deadline_ns = syncguard_clock_after(syncguard_clock_ns(), a->options.timeout_ms);
    a->set = syncguard_calloc(1, sizeof *a->set + a->count * sizeof(syncguard_lock *));
    if (a->set == NULL)
        return syncguard_fail_memory(err);
    atomic_init(&a->set->phase, ACQUIRING);
    a->set->count = a->count;
    a->set->on_lost = a->options.on_lost;
    a->set->on_lost_context = a->options.on_lost_context;
    a->set->abort_on_lost = a->options.abort_on_lost;
    if (a->options.on_lost != NULL || a->options.abort_on_lost != NULL)
        a->options.on_lost = lock_set_tell_loss;
    a->options.on_lost_context = a->set;
    a->options.abort_on_lost = NULL;
    return SYNCGUARD_OK;
}

static syncguard_status lock_set_acquire(acquisition *a, const char *const *keys, size_t count,
                                         const syncguard_lock_options *given,
                                         syncguard_lock_set **out, syncguard_error *err)
{
    syncguard_error own;
    err = err != NULL ? err : &own;
    syncguard_error_clear(err);
    if (out != NULL)
        *out = NULL;
    if (a->backend == NULL || out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or out is NULL");
    syncguard_status status = lock_set_read_keys(a, keys, count, err);
    if (status == SYNCGUARD_OK)
        status = lock_set_prepare(a, given, err);
    if (status == SYNCGUARD_OK) {
        do
            status = lock_set_acquire_round(a, out, err);
        while (status == SYNCGUARD_ABSENT && a->waits && a->options.timeout_ms != 0);
        if (status == SYNCGUARD_ABSENT && a->waits)
            status = lock_set_fail_timeout(a, 0, err);
        else if (status == SYNCGUARD_ABSENT)
            status = SYNCGUARD_LOCKED;
    }
    syncguard_free(a->set);
    syncguard_free(a->keys);
    return status;
}

syncguard_status syncguard_lock_acquire_all(syncguard_backend *backend, const char *const *keys,
                                            size_t count, const syncguard_lock_options *options,
                                            syncguard_lock_set **out, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    acquisition a = {.backend = backend, .waits = true};
    return lock_set_acquire(&a, keys, count, options, out, err);
}

syncguard_status syncguard_lock_try_all(syncguard_backend *backend, const char *const *keys,
                                        size_t count, const syncguard_lock_options *options,
                                        syncguard_lock_set **out, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    acquisition a = {.backend = backend, .waits = false};
    return lock_set_acquire(&a, keys, count, options, out, err);
}

/* ---- queries ---- */

size_t syncguard_lock_set_count(const syncguard_lock_set *set)
{
    return set->count;
}

const syncguard_lock *syncguard_lock_set_at(const syncguard_lock_set *set, size_t index)
{
    return index < set->count ? set->locks[index] : NULL;
}

const syncguard_lock *syncguard_lock_set_find(const syncguard_lock_set *set, const char *key)
{
    char normal[SYNCGUARD_KEY_SIZE];
    size_t length = 0;
    if (syncguard_key_normalize(key, normal, &length, NULL) != SYNCGUARD_OK)
        return NULL;
    for (size_t i = 0; i < set->count; i++) {
        const syncguard_lock *lock = set->locks[i];
        if (lock->name_length == length && memcmp(lock->key, normal, length) == 0)
            return lock;
    }
    return NULL;
}

bool syncguard_lock_set_held(const syncguard_lock_set *set)
{
    bool held = true;
    for (size_t i = 0; i < set->count; i++)
        held = syncguard_lock_held(set->locks[i]) && held;
    return held;
}

int64_t syncguard_lock_set_remaining_ms(const syncguard_lock_set *set)
{
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < set->count; i++) {
        int64_t left = syncguard_lock_remaining_ms(set->locks[i]);
        least = left < least ? left : least;
    }
    return least;
}

syncguard_lost_reason syncguard_lock_set_lost(const syncguard_lock_set *set)
{
    syncguard_lost_reason reason = SYNCGUARD_LOST_NO;
    for (size_t i = 0; i < set->count && reason == SYNCGUARD_LOST_NO; i++)
        reason = syncguard_lock_lost(set->locks[i]);
    return reason;
}

/* ---- release, extend, dispose ---- */

/* The call options for the next key: the time left until the common deadline, but never 0, which
 * would mean the default. */
static syncguard_call lock_set_next_call(const syncguard_limits *limits)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    int64_t left_ns = limits->deadline_ns - syncguard_clock_ns();
    call.abort_object = limits->abort_object;
    call.timeout_ms = left_ns > SYNCGUARD_NS_PER_MS ? left_ns / SYNCGUARD_NS_PER_MS : 1;
    return call;
}

static syncguard_status lock_set_begin_call(const syncguard_lock_set *set,
                                            const syncguard_call *call, syncguard_limits *limits,
                                            syncguard_error *err)
{
    syncguard_error_clear(err);
    if (set == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "set is NULL");
    return sg_limits_read(set->locks[0]->backend, call, limits, err);
}

syncguard_status syncguard_lock_set_release(syncguard_lock_set *set, const syncguard_call *call,
                                            syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_limits limits;
    syncguard_status result = lock_set_begin_call(set, call, &limits, err);
    if (result != SYNCGUARD_OK)
        return result;
    for (size_t i = set->count; i-- > 0;) {
        syncguard_error one;
        syncguard_call step = lock_set_next_call(&limits);
        syncguard_status status = syncguard_lock_release(set->locks[i], &step, &one);
        if (status < SYNCGUARD_OK && result >= SYNCGUARD_OK && err != NULL)
            *err = one;
        if (result == SYNCGUARD_OK || (status < SYNCGUARD_OK && result > SYNCGUARD_OK))
            result = status;
    }
    return result;
}

syncguard_status syncguard_lock_set_extend(syncguard_lock_set *set, int64_t ttl_ms,
                                           const syncguard_call *call, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_limits limits;
    syncguard_status status = lock_set_begin_call(set, call, &limits, err);
    for (size_t i = 0; status == SYNCGUARD_OK && i < set->count; i++) {
        syncguard_call step = lock_set_next_call(&limits);
        status = syncguard_lock_extend(set->locks[i], ttl_ms, &step, NULL, err);
    }
    return status;
}

/* A running callback may use every lock of the set, so it must end before the first is freed. */
static void lock_set_silence(syncguard_lock_set *set)
{
    atomic_store(&set->phase, TOLD);
    for (size_t i = 0; i < set->count && set->locks[i]->pid == getpid(); i++)
        sg_lost_locks_silence(&set->locks[i]->backend->core->heartbeat.lost, set->locks[i]);
}

void syncguard_lock_set_dispose(syncguard_lock_set *set)
{
    SYNCGUARD_NO_CANCEL;
    if (set == NULL)
        return;
    int64_t deadline_ns = lock_set_dispose_deadline(set->locks[0]->backend);
    lock_set_silence(set);
    for (size_t i = set->count; i-- > 0;)
        sg_lock_dispose_until(set->locks[i], "scope", deadline_ns);
    syncguard_free(set);
}

void syncguard_lock_set_detach(syncguard_lock_set *set)
{
    SYNCGUARD_NO_CANCEL;
    if (set == NULL)
        return;
    lock_set_silence(set);
    for (size_t i = set->count; i-- > 0;)
        syncguard_lock_detach(set->locks[i]);
    syncguard_free(set);
}

void syncguard_lock_set_dispose_scoped(syncguard_lock_set **set)
{
    if (set != NULL) {
        syncguard_lock_set_dispose(*set);
        *set = NULL;
    }
}
