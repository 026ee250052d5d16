/*
 * Slots over a store that notes the holder of each slot, and whose answers can be held back.
 *
 * Interleavings that are made here on purpose:
 *   - two releases while two wait: two tries, also if one of them hangs
 *   - chosen for two slots, gets one: the other goes to the next waiter, or to a new one
 *   - a release while a try of the same slot is in flight, and of another slot
 *   - a release between the first attempt and the joining, on a store that reports nothing
 *   - a release while all waiters are in on_wait
 *   - expiry, deadline, abort, cancel, close, fork, notifications lost, a store that is down
 */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_assert.h"

#include "core/wait_queue.h"
#include "fake_backend.h"
#include "syncguard/slots.h"

#define N 4
#define NAME "render"
#define LONG_MS 600000

static struct {
    pthread_mutex_t mutex;
    char holder[SYNCGUARD_SLOTS_MAX + 1][SYNCGUARD_LOCK_ID_SIZE];
    int tries[SYNCGUARD_SLOTS_MAX + 1];
    int64_t remaining_ms[SYNCGUARD_SLOTS_MAX + 1];
    atomic_bool gated[SYNCGUARD_SLOTS_MAX + 1]; /* answers are computed, and held back */
    atomic_int behind_gate;
    int holders;
    int most;
    atomic_bool down;
    atomic_int down_after_ms; /* a failure takes this long */
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int slot_of(const char *key)
{
    const char *colon = strrchr(key, ':');
    return colon != NULL ? (int)strtol(colon + 1, NULL, 10) : 0;
}

static syncguard_status slots_table_acquire(syncguard_acquire_op *op, int slot)
{
    syncguard_status status = SYNCGUARD_LOCKED;
    pthread_mutex_lock(&table.mutex);
    table.tries[slot]++;
    if (table.holder[slot][0] == '\0') {
        memcpy(table.holder[slot], op->lock_id, SYNCGUARD_LOCK_ID_SIZE);
        if (++table.holders > table.most)
            table.most = table.holders;
        status = SYNCGUARD_OK;
    }
    op->remaining_ms = table.remaining_ms[slot];
    op->armed_ms = op->watch ? SYNCGUARD_ARMED_MS : 0;
    pthread_mutex_unlock(&table.mutex);
    return status;
}

static syncguard_status acquire_slot(fake_backend *p, syncguard_acquire_op *op,
                                     syncguard_error *err)
{
    int slot = slot_of(op->key);
    (void)p;
    if (atomic_load(&table.down)) {
        test_sleep_ms(atomic_load(&table.down_after_ms));
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
    }
    syncguard_status status = slots_table_acquire(op, slot);
    atomic_fetch_add(&table.behind_gate, atomic_load(&table.gated[slot]) ? 1 : 0);
    while (atomic_load(&table.gated[slot]))
        test_sleep_ms(1);
    return status;
}

static syncguard_status release_slot(fake_backend *p, syncguard_release_op *op,
                                     syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_ABSENT;
    (void)p, (void)err;
    pthread_mutex_lock(&table.mutex);
    for (int i = 1; i <= SYNCGUARD_SLOTS_MAX; i++) {
        if (strcmp(table.holder[i], op->lock_id) == 0) {
            table.holder[i][0] = '\0';
            table.holders--;
            status = SYNCGUARD_OK;
        }
    }
    pthread_mutex_unlock(&table.mutex);
    return status;
}

static void set_held(int slot, bool held)
{
    pthread_mutex_lock(&table.mutex);
    snprintf(table.holder[slot], sizeof table.holder[slot], "%s", held ? "somebody else" : "");
    table.holders += held ? 1 : -1;
    pthread_mutex_unlock(&table.mutex);
}

static int slots_count_tries(int slot)
{
    pthread_mutex_lock(&table.mutex);
    int tries = table.tries[slot];
    pthread_mutex_unlock(&table.mutex);
    return tries;
}

/* A store with N slots, the first `held` of them held by another owner. */
static fake_backend *open_slots(int held)
{
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = acquire_slot;
    p->on_release = release_slot;
    pthread_mutex_lock(&table.mutex);
    memset(table.holder, 0, sizeof table.holder);
    memset(table.tries, 0, sizeof table.tries);
    table.holders = table.most = 0;
    for (int i = 0; i <= SYNCGUARD_SLOTS_MAX; i++)
        table.remaining_ms[i] = LONG_MS;
    pthread_mutex_unlock(&table.mutex);
    atomic_store(&table.behind_gate, 0);
    for (int i = 1; i <= held; i++)
        set_held(i, true);
    return p;
}

/* The store reports a change of the slot's key. */
static void slots_report_change(fake_backend *p, int slot)
{
    char key[SYNCGUARD_KEY_SIZE];
    assert_int_equal(syncguard_slot_key(NAME, slot, key, NULL), SYNCGUARD_OK);
    syncguard_backend_key_changed(&p->base, key, strlen(key));
}

static void free_slot(fake_backend *p, int slot)
{
    set_held(slot, false);
    slots_report_change(p, slot);
}

/* Only a wake-up can end the wait in time. */
static syncguard_lock_options slots_patient_options(void)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    options.retry_delay_ms = 30000;
    options.slots = N;
    return options;
}

typedef struct waiter {
    pthread_t thread;
    fake_backend *p;
    syncguard_lock_options options;
    syncguard_lock *lock;
    syncguard_status status;
    syncguard_error err;
    atomic_int done;
} waiter;

static void *slots_waiter_acquire(void *argument)
{
    waiter *w = argument;
    w->status = syncguard_lock_acquire(&w->p->base, NAME, &w->options, &w->lock, &w->err);
    atomic_store(&w->done, 1);
    return NULL;
}

static void slots_start_waiter(waiter *w, fake_backend *p, syncguard_lock_options options)
{
    *w = (waiter){.p = p, .options = options};
    w->thread = test_start_thread(slots_waiter_acquire, w);
}

/* Starts `count` waiters, one after the other. Only the first one arms the slots. */
static void start_waiting(waiter *w, int count, fake_backend *p, syncguard_lock_options options)
{
    for (int i = 0; i < count; i++) {
        slots_start_waiter(&w[i], p, options);
        assert_true(wait_for_count(&p->acquires, (i + 2) * N));
        test_sleep_ms(30);
    }
    assert_int_equal(atomic_load(&p->acquires), (count + 1) * N);
    assert_int_equal(atomic_load(&p->watched), N);
}

static void slots_assert_granted(waiter *w, int slot)
{
    pthread_join(w->thread, NULL);
    assert_int_equal(w->status, SYNCGUARD_OK);
    if (slot > 0)
        assert_int_equal(syncguard_lock_slot(w->lock), slot);
    syncguard_lock_dispose(w->lock);
}

/* ---- keys and options ---- */

static void keys_of_slots_are_fixed(void **state)
{
    char key[SYNCGUARD_KEY_SIZE];
    (void)state;
    assert_int_equal(syncguard_slot_key("render", 1, key, NULL), SYNCGUARD_OK);
    assert_string_equal(key, "render:slot:1");
    assert_int_equal(syncguard_slot_key("render:slot:1", 256, key, NULL), SYNCGUARD_OK);
    assert_string_equal(key, "render:slot:1:slot:256");
    assert_int_equal(syncguard_slot_key("e\xcc\x81", 2, key, NULL), SYNCGUARD_OK);
    assert_string_equal(key, "\xc3\xa9:slot:2");
    assert_int_equal(syncguard_slot_key("render", 0, key, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_slot_key("render", 257, key, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_slot_key("", 1, key, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_slot_key(NULL, 1, key, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    char name[SYNCGUARD_KEY_SIZE];
    memset(name, 'x', sizeof name);
    name[SYNCGUARD_MAX_SLOT_NAME_BYTES] = '\0';
    assert_int_equal(syncguard_slot_key(name, 256, key, NULL), SYNCGUARD_OK);
    assert_int_equal(strlen(key), SYNCGUARD_MAX_KEY_BYTES);
    name[SYNCGUARD_MAX_SLOT_NAME_BYTES] = 'x';
    name[SYNCGUARD_MAX_SLOT_NAME_BYTES + 1] = '\0';
    assert_int_equal(syncguard_slot_key(name, 1, key, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_string_equal(key, "");
}

static void options_are_checked(void **state)
{
    static const int bad[] = {-1, SYNCGUARD_SLOTS_MAX + 1};
    fake_backend *p = open_slots(0);
    syncguard_lock_options options = slots_patient_options();
    syncguard_lock *lock = NULL;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        options.slots = bad[i];
        assert_int_equal(syncguard_lock_try(&p->base, NAME, &options, &lock, NULL),
                         SYNCGUARD_E_INVALID_ARGUMENT);
    }
    options.slots = SYNCGUARD_SLOTS_MAX;
    char name[SYNCGUARD_MAX_SLOT_NAME_BYTES + 2];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(syncguard_lock_try(&p->base, name, &options, &lock, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(atomic_load(&p->acquires), 0);
    name[sizeof name - 2] = '\0';
    assert_int_equal(syncguard_lock_try(&p->base, name, &options, &lock, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    assert_int_equal(syncguard_lock_try(&p->base, NAME, NULL, &lock, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_slot(lock), 0);
    assert_string_equal(syncguard_lock_key(lock), NAME);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* ---- the first attempt ---- */

static void first_attempt_ends_at_a_free_slot(void **state)
{
    fake_backend *p = open_slots(N - 1);
    syncguard_lock_options options = slots_patient_options();
    syncguard_lock *lock = NULL;
    int first = 0;
    (void)state;
    for (int i = 0; i < 100; i++) {
        int before = atomic_load(&p->acquires);
        assert_int_equal(syncguard_lock_acquire(&p->base, NAME, &options, &lock, NULL),
                         SYNCGUARD_OK);
        assert_int_equal(syncguard_lock_slot(lock), N);
        assert_string_equal(syncguard_lock_key(lock), NAME ":slot:4");
        assert_in_range(atomic_load(&p->acquires) - before, 1, N);
        first += atomic_load(&p->acquires) - before == 1;
        syncguard_lock_dispose(lock);
    }
    assert_in_range(first, 5, 60); /* one of four, on average */
    assert_int_equal(atomic_load(&p->watched), 0);
    assert_int_equal(atomic_load(&p->unwatches), 0);
    syncguard_close(&p->base);
}

static void without_waiting_each_slot_is_tried_once(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = slots_patient_options();
    syncguard_lock *lock = NULL;
    (void)state;
    assert_int_equal(syncguard_lock_try(&p->base, NAME, &options, &lock, NULL), SYNCGUARD_LOCKED);
    for (int i = 1; i <= N; i++)
        assert_int_equal(slots_count_tries(i), 1);
    options.max_retries = 0;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, NAME, &options, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_string_equal(err.message, "all 4 slots are held, and the options ask for no retry");
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(NAME, hash));
    assert_string_equal(err.key_hash, hash);
    assert_int_equal(atomic_load(&p->acquires), 2 * N);
    assert_int_equal(atomic_load(&p->watched), 0);
    atomic_store(&table.down, true);
    assert_int_equal(syncguard_lock_try(&p->base, NAME, &options, &lock, &err),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    atomic_store(&table.down, false);
    assert_string_equal(err.key_hash, hash);
    assert_int_equal(atomic_load(&p->acquires), 2 * N + 1);
    syncguard_close(&p->base);
}

/* ---- joining ---- */

/* Is released when the waiter is about to join the waiters of its key: linked with --wrap. */
static syncguard_lock *released_at_join;

syncguard_status __real_sg_wait_queue_join(sg_wait_queue *queue, sg_waiting *waiting,
                                           const char *key, size_t length, int64_t remaining_ms,
                                           bool missed, syncguard_error *err);
syncguard_status __wrap_sg_wait_queue_join(sg_wait_queue *queue, sg_waiting *waiting,
                                           const char *key, size_t length, int64_t remaining_ms,
                                           bool missed, syncguard_error *err);

syncguard_status __wrap_sg_wait_queue_join(sg_wait_queue *queue, sg_waiting *waiting,
                                           const char *key, size_t length, int64_t remaining_ms,
                                           bool missed, syncguard_error *err)
{
    syncguard_lock *lock = released_at_join;
    if (lock != NULL && strncmp(syncguard_lock_key(lock), key, length) == 0) {
        released_at_join = NULL;
        syncguard_lock_dispose(lock);
    }
    return __real_sg_wait_queue_join(queue, waiting, key, length, remaining_ms, missed, err);
}

static void join_after_release(int slots, int released)
{
    syncguard_backend *store = NULL;
    int count = slots > 0 ? slots : 1;
    syncguard_lock_options options = slots_patient_options();
    options.slots = slots;
    options.timeout_ms = 5000;
    assert_int_equal(syncguard_open("memory:", NULL, &store, NULL), SYNCGUARD_OK);
    syncguard_lock *locks[N] = {NULL};
    syncguard_lock *lock = NULL;
    for (int i = 0; i < count; i++) {
        assert_int_equal(syncguard_lock_try(store, NAME, &options, &lock, NULL), SYNCGUARD_OK);
        locks[slots > 0 ? syncguard_lock_slot(lock) - 1 : 0] = lock;
    }
    released_at_join = locks[released];
    locks[released] = NULL;
    assert_int_equal(syncguard_lock_acquire(store, NAME, &options, &lock, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_slot(lock), slots > 0 ? released + 1 : 0);
    assert_null(released_at_join);
    syncguard_lock_dispose(lock);
    for (int i = 0; i < count; i++)
        syncguard_lock_dispose(locks[i]);
    syncguard_close(store);
}

static void release_before_joining_is_not_missed(void **state)
{
    (void)state;
    join_after_release(0, 0);
    for (int i = 0; i < N; i++)
        join_after_release(N, i);
}

/* ---- waking ---- */

static void release_of_a_slot_costs_one_try_of_it(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w;
    (void)state;
    start_waiting(&w, 1, p, slots_patient_options());
    for (int i = 1; i <= N; i++) {
        assert_int_equal(slots_count_tries(i), 2);
        slots_report_change(p, i); /* another waiter was faster */
        assert_true(wait_for_count(&p->acquires, 2 * N + i));
    }
    test_sleep_ms(50);
    assert_int_equal(atomic_load(&p->acquires), 3 * N);
    free_slot(p, 3);
    slots_assert_granted(&w, 3);
    assert_int_equal(atomic_load(&p->acquires), 3 * N + 1);
    assert_int_equal(slots_count_tries(3), 4);
    assert_int_equal(atomic_load(&p->unwatches), N);
    assert_in_range(table.most, N, N);
    syncguard_close(&p->base);
}

static void two_releases_wake_two(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w[3];
    (void)state;
    start_waiting(w, 3, p, slots_patient_options());
    atomic_store(&table.gated[2], true); /* the first that is woken hangs */
    free_slot(p, 2);
    assert_true(wait_for_count(&table.behind_gate, 1));
    free_slot(p, 4);
    slots_assert_granted(&w[1], 4);
    assert_int_equal(atomic_load(&w[0].done), 0);
    /* Slot 4 was passed on at once, and goes to the third waiter. */
    slots_assert_granted(&w[2], 4);
    atomic_store(&table.gated[2], false);
    slots_assert_granted(&w[0], 2);
    assert_int_equal(atomic_load(&p->acquires), 4 * N + 3);
    syncguard_close(&p->base);
}

/* Both wait for answers when a third slot is released, so one of them is chosen for two slots. It
 * gets the first, and the other waiter tries the second. */
static void wake_up_for_another_slot_is_passed_on(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w[2];
    (void)state;
    start_waiting(w, 2, p, slots_patient_options());
    atomic_store(&table.gated[1], true);
    atomic_store(&table.gated[2], true);
    free_slot(p, 1);
    assert_true(wait_for_count(&table.behind_gate, 1));
    slots_report_change(p, 2); /* in vain */
    assert_true(wait_for_count(&table.behind_gate, 2));
    free_slot(p, 3);
    test_sleep_ms(20);
    assert_int_equal(slots_count_tries(3), 3);
    atomic_store(&table.gated[1], false);
    pthread_join(w[0].thread, NULL);
    assert_int_equal(syncguard_lock_slot(w[0].lock), 1);
    assert_int_equal(slots_count_tries(3), 3);
    int64_t since_ns = syncguard_clock_ns();
    atomic_store(&table.gated[2], false);
    slots_assert_granted(&w[1], 3);
    /* By the wake-up that was passed on: the poll, which would find it as well, comes after a
     * second. */
    assert_true(syncguard_clock_ns() - since_ns < 500 * SYNCGUARD_NS_PER_MS);
    assert_int_equal(slots_count_tries(3), 4);
    syncguard_lock_dispose(w[0].lock);
    syncguard_close(&p->base);
}

/* As before, but the chosen waiter ends without a lock: by its deadline, or aborted. */
static void wake_up_of_one_that_gives_up_is_passed_on(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w[2];
    syncguard_lock_options options = slots_patient_options();
    (void)state;
    assert_int_equal(syncguard_abort_create(&options.abort_object, NULL), SYNCGUARD_OK);
    start_waiting(w, 1, p, options);
    options = slots_patient_options();
    slots_start_waiter(&w[1], p, options);
    assert_true(wait_for_count(&p->acquires, 3 * N));
    test_sleep_ms(30);
    atomic_store(&table.gated[1], true);
    atomic_store(&table.gated[2], true);
    slots_report_change(p, 1);
    assert_true(wait_for_count(&table.behind_gate, 1));
    slots_report_change(p, 2);
    assert_true(wait_for_count(&table.behind_gate, 2));
    free_slot(p, 3); /* w[0] is chosen for it */
    syncguard_abort_trigger(w[0].options.abort_object);
    atomic_store(&table.gated[1], false);
    pthread_join(w[0].thread, NULL);
    assert_int_equal(w[0].status, SYNCGUARD_E_ABORTED);
    atomic_store(&table.gated[2], false);
    slots_assert_granted(&w[1], 3);
    syncguard_abort_free(w[0].options.abort_object);
    syncguard_close(&p->base);
}

static void events_overtake_a_try(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w;
    (void)state;
    start_waiting(&w, 1, p, slots_patient_options());
    atomic_store(&table.gated[1], true);
    slots_report_change(p, 1);
    assert_true(wait_for_count(&table.behind_gate, 1)); /* LOCKED is on its way */
    free_slot(p, 1);
    atomic_store(&table.gated[1], false);
    slots_assert_granted(&w, 1);
    assert_int_equal(atomic_load(&p->acquires), 2 * N + 2);
    syncguard_close(&p->base);
}

/* One slot that changes all the time does not delay the others. */
static void busy_slot_does_not_hide_a_free_one(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w;
    (void)state;
    start_waiting(&w, 1, p, slots_patient_options());
    atomic_store(&table.gated[1], true);
    slots_report_change(p, 1);
    assert_true(wait_for_count(&table.behind_gate, 1));
    slots_report_change(p, 1); /* makes it try slot 1 again */
    free_slot(p, 2);
    atomic_store(&table.gated[1], false);
    slots_assert_granted(&w, 2);
    assert_int_equal(slots_count_tries(1), 3);
    syncguard_close(&p->base);
}

static atomic_int in_callback;
static atomic_bool stay;
static void slow_on_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    (void)waited_ms;
    *(int64_t *)context = remaining_ms;
    assert_in_range(attempts, N, 4 * N);
    atomic_fetch_add(&in_callback, 1);
    while (atomic_load(&stay))
        test_sleep_ms(1);
}

static void release_while_all_are_away(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = slots_patient_options();
    (void)state;
    table.remaining_ms[3] = 5000;
    options.on_wait = slow_on_wait;
    int64_t remaining_ms = 0;
    options.on_wait_context = &remaining_ms;
    atomic_store(&in_callback, 0);
    atomic_store(&stay, true);
    waiter w;
    slots_start_waiter(&w, p, options);
    assert_true(wait_for_count(&in_callback, 1));
    assert_in_range(remaining_ms, 1000, 5000); /* of the slot that ends first */
    free_slot(p, 4);
    test_sleep_ms(30);
    assert_int_equal(slots_count_tries(4), 2);
    atomic_store(&stay, false);
    slots_assert_granted(&w, 4);
    assert_int_equal(atomic_load(&p->acquires), 2 * N + 1);
    syncguard_close(&p->base);
}

static void another_is_woken_for_one_that_is_away(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = slots_patient_options();
    int64_t remaining_ms = 0;
    (void)state;
    options.on_wait = slow_on_wait;
    options.on_wait_context = &remaining_ms;
    atomic_store(&in_callback, 0);
    atomic_store(&stay, true);
    waiter w[2];
    slots_start_waiter(&w[0], p, options);
    assert_true(wait_for_count(&in_callback, 1));
    slots_start_waiter(&w[1], p, slots_patient_options());
    assert_true(wait_for_count(&p->acquires, 3 * N));
    test_sleep_ms(30);
    free_slot(p, 1);
    slots_assert_granted(&w[1], 1);
    atomic_store(&stay, false);
    slots_assert_granted(&w[0], 1);
    syncguard_close(&p->base);
}

static void lost_notifications_make_each_slot_be_tried_once(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w[2];
    (void)state;
    start_waiting(w, 2, p, slots_patient_options());
    syncguard_backend_notifications_lost(&p->base);
    assert_true(wait_for_count(&p->acquires, 4 * N));
    test_sleep_ms(50);
    assert_int_equal(atomic_load(&p->acquires), 4 * N);
    for (int i = 1; i <= N; i++)
        assert_int_equal(slots_count_tries(i), 4);
    free_slot(p, 1);
    free_slot(p, 2);
    slots_assert_granted(&w[0], 0);
    slots_assert_granted(&w[1], 0);
    syncguard_close(&p->base);
}

/* A crowd in one process: as many tries as releases, never more holders than slots. */
static void *slots_crowd_member_run(void *argument)
{
    waiter *w = argument;
    slots_waiter_acquire(w);
    if (w->status == SYNCGUARD_OK)
        test_sleep_ms(2);
    syncguard_lock_dispose(w->lock);
    return NULL;
}

#define CROWD 100
static void crowd_costs_one_try_per_release(void **state)
{
    static waiter w[CROWD];
    fake_backend *p = open_slots(N);
    (void)state;
    for (int i = 0; i < CROWD; i++) {
        w[i] = (waiter){.p = p, .options = slots_patient_options()};
        w[i].thread = test_start_thread(slots_crowd_member_run, &w[i]);
    }
    assert_true(wait_for_count(&p->acquires, (CROWD + 1) * N));
    test_sleep_ms(200);
    int before = atomic_load(&p->acquires);
    for (int i = 1; i <= N; i++)
        free_slot(p, i);
    for (int i = 0; i < CROWD; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, SYNCGUARD_OK);
    }
    assert_in_range(atomic_load(&p->acquires) - before, CROWD, CROWD + CROWD / 5);
    assert_in_range(table.most, N, N);
    syncguard_close(&p->base);
}

/* ---- time ---- */

static void expiry_of_any_slot_is_noticed(void **state)
{
    fake_backend *p = open_slots(N);
    waiter w;
    (void)state;
    table.remaining_ms[2] = 300;
    start_waiting(&w, 1, p, slots_patient_options());
    set_held(2, false); /* by itself: no notification is sent */
    slots_assert_granted(&w, 2);
    assert_int_equal(atomic_load(&p->acquires), 2 * N + 1);
    syncguard_close(&p->base);
}

static void retries_try_one_slot_each(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    (void)state;
    options.slots = N;
    options.retry_delay_ms = 2;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.max_retries = 2 * N;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, NAME, &options, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_non_null(strstr(err.message, "gave up after 8 retries ("));
    assert_non_null(strstr(err.message, ": all 4 slots are held"));
    assert_int_equal(atomic_load(&p->acquires), 4 * N);
    for (int i = 1; i <= N; i++)
        assert_int_equal(slots_count_tries(i), 4);
    assert_int_equal(atomic_load(&p->unwatches), N);
    syncguard_close(&p->base);
}

static void deadline_ends_the_waiting(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = slots_patient_options();
    syncguard_lock *lock = NULL;
    syncguard_error err;
    (void)state;
    options.timeout_ms = 200;
    assert_int_equal(syncguard_lock_acquire(&p->base, NAME, &options, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_non_null(strstr(err.message, "gave up after "));
    assert_non_null(strstr(err.message, "all 4 slots are held"));
    assert_int_equal(atomic_load(&p->acquires), 2 * N);
    assert_int_equal(syncguard_backend_waited_keys(&p->base), 0);
    syncguard_close(&p->base);
}

/* If a try fails, the state of the other slots is unknown: each is tried later. */
static void store_that_is_down_is_waited_out(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = slots_patient_options();
    (void)state;
    atomic_store(&table.down, true);
    options.retry_unavailable = true;
    options.retry_delay_ms = 50;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    waiter w;
    slots_start_waiter(&w, p, options);
    assert_true(wait_for_count(&p->acquires, 5));
    assert_in_range(atomic_load(&p->acquires), 5, 8); /* one for each pause */
    atomic_store(&table.down, false);
    assert_true(wait_for_count(&p->acquires, 5 + N));
    test_sleep_ms(20);
    for (int i = 1; i <= N; i++)
        assert_in_range(slots_count_tries(i), 1, 3);
    free_slot(p, 2);
    slots_assert_granted(&w, 2);
    syncguard_close(&p->base);
}

/* All slots are chosen when the notifications are lost. Not all of them are tried before a retry
 * counts if each try takes as long as its limit. */
static void store_that_hangs_uses_up_the_retries(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_lock_options options = slots_patient_options();
    (void)state;
    for (int i = N + 1; i <= SYNCGUARD_SLOTS_MAX; i++)
        set_held(i, true);
    options.slots = SYNCGUARD_SLOTS_MAX;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.retry_delay_ms = 300;
    options.max_retries = 2;
    options.timeout_ms = 5000;
    options.retry_unavailable = true;
    waiter w;
    slots_start_waiter(&w, p, options);
    assert_true(wait_for_count(&p->acquires, 2 * SYNCGUARD_SLOTS_MAX));
    atomic_store(&table.down_after_ms, 400);
    atomic_store(&table.down, true);
    int before = atomic_load(&p->acquires);
    syncguard_backend_notifications_lost(&p->base);
    pthread_join(w.thread, NULL);
    atomic_store(&table.down, false);
    atomic_store(&table.down_after_ms, 0);
    assert_int_equal(w.status, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_in_range(atomic_load(&p->acquires) - before, 2, 6);
    syncguard_close(&p->base);
}

/* One slot for each pause, each slot in turn, and an expiry at its time. */
static void silent_store_is_polled_one_slot_at_a_time(void **state)
{
    syncguard_lock_options options = slots_patient_options();
    (void)state;
    fake_backend *p = open_slots(N);
    syncguard_close(&p->base);
    p = fake_backend_open_silent(NULL);
    p->on_acquire = acquire_slot;
    p->on_release = release_slot;
    memset(table.tries, 0, sizeof table.tries);
    options.retry_delay_ms = 100;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.jitter = SYNCGUARD_JITTER_NONE;
    waiter w;
    slots_start_waiter(&w, p, options);
    assert_true(wait_for_count(&p->acquires, N));
    test_sleep_ms(1050);
    assert_in_range(atomic_load(&p->acquires) - N, 5, 11);
    for (int i = 1; i <= N; i++)
        assert_in_range(slots_count_tries(i), 2, 4);
    set_held(4, false);
    slots_assert_granted(&w, 4);
    syncguard_close(&p->base);
}

/* Where arming does not last (with a pooler in between, say), the tries of resting waiters are
 * limited for each waiter, not for each slot. */
static syncguard_status never_armed(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    syncguard_status status = acquire_slot(p, op, err);
    op->armed_ms = 0;
    return status;
}

static void polls_are_limited_for_all_slots_together(void **state)
{
    fake_backend *p = open_slots(64);
    syncguard_lock_options options = slots_patient_options();
    (void)state;
    p->on_acquire = never_armed;
    options.slots = 64;
    waiter w;
    slots_start_waiter(&w, p, options);
    assert_true(wait_for_count(&p->acquires, 128));
    test_sleep_ms(3500);
    assert_in_range(atomic_load(&p->acquires), 130, 132);
    free_slot(p, 64);
    slots_assert_granted(&w, 64);
    syncguard_close(&p->base);
}

/* ---- completion queue and fork ---- */

static syncguard_queue *slots_open_queue(fake_backend *p)
{
    syncguard_queue *queue = NULL;
    assert_int_equal(syncguard_queue_open(&p->base, NULL, &queue, NULL), SYNCGUARD_OK);
    return queue;
}

static syncguard_request start_async(syncguard_queue *queue)
{
    syncguard_lock_options options = slots_patient_options();
    syncguard_request request = 0;
    assert_int_equal(syncguard_lock_acquire_async(queue, NAME, &options, NULL, &request, NULL),
                     SYNCGUARD_OK);
    return request;
}

static syncguard_completion completion_of(syncguard_queue *queue)
{
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    syncguard_completion done;
    assert_int_equal(poll(&fd, 1, 30000), 1);
    assert_true(syncguard_queue_next(queue, &done));
    return done;
}

static void queue_waits_for_slots(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_queue *queue = slots_open_queue(p);
    (void)state;
    syncguard_request first = start_async(queue);
    assert_true(wait_for_count(&p->acquires, 2 * N));
    test_sleep_ms(30);
    syncguard_request second = start_async(queue);
    assert_true(wait_for_count(&p->acquires, 3 * N));
    test_sleep_ms(30);
    assert_int_equal(atomic_load(&p->acquires), 3 * N);
    free_slot(p, 3);
    syncguard_completion done = completion_of(queue);
    assert_true(done.request == first);
    assert_int_equal(done.status, SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_slot(done.lock), 3);
    assert_int_equal(atomic_load(&p->acquires), 3 * N + 1);
    assert_int_equal(syncguard_lock_release_async(queue, done.lock, NULL, NULL, NULL, NULL),
                     SYNCGUARD_OK);
    for (int i = 0; i < 2; i++) {
        done = completion_of(queue);
        assert_int_equal(done.status, SYNCGUARD_OK);
        if (done.kind == SYNCGUARD_COMPLETION_ACQUIRE) {
            assert_true(done.request == second);
            assert_int_equal(syncguard_lock_slot(done.lock), 3);
            syncguard_lock_dispose(done.lock);
        }
    }
    syncguard_queue_close(queue);
    assert_int_equal(syncguard_backend_waited_keys(&p->base), 0);
    syncguard_close(&p->base);
}

static void queue_ends_waiting_for_slots(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_queue *queue = slots_open_queue(p);
    (void)state;
    syncguard_request first = start_async(queue);
    start_async(queue);
    assert_true(wait_for_count(&p->acquires, 3 * N));
    test_sleep_ms(50);
    assert_true(syncguard_queue_cancel(queue, first));
    assert_int_equal(completion_of(queue).status, SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_backend_waited_keys(&p->base), 1); /* all slots count as one */
    syncguard_queue_close(queue);
    assert_int_equal(syncguard_backend_waited_keys(&p->base), 0);
    assert_int_equal(atomic_load(&p->unwatches), N);
    syncguard_close(&p->base);
}

static void forked_child_forgets_the_waiting(void **state)
{
    fake_backend *p = open_slots(N);
    syncguard_queue *queue = slots_open_queue(p);
    (void)state;
    start_async(queue);
    assert_true(wait_for_count(&p->acquires, 2 * N));
    test_sleep_ms(50);
    pid_t child = fork();
    if (child == 0) {
        syncguard_lock_options options = slots_patient_options();
        syncguard_lock *lock = NULL;
        set_held(2, false);
        bool ok = syncguard_lock_try(&p->base, NAME, &options, &lock, NULL) == SYNCGUARD_OK &&
                  syncguard_lock_slot(lock) == 2 && syncguard_backend_waited_keys(&p->base) == 0;
        syncguard_lock_dispose(lock);
        syncguard_queue_close(queue);
        syncguard_close(&p->base);
        _exit(ok ? 0 : 1);
    }
    assert_true(child > 0);
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    free_slot(p, 1);
    syncguard_completion done = completion_of(queue);
    assert_int_equal(syncguard_lock_slot(done.lock), 1);
    syncguard_lock_dispose(done.lock);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_slots_are_fixed),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(first_attempt_ends_at_a_free_slot),
        cmocka_unit_test(without_waiting_each_slot_is_tried_once),
        cmocka_unit_test(release_before_joining_is_not_missed),
        cmocka_unit_test(release_of_a_slot_costs_one_try_of_it),
        cmocka_unit_test(two_releases_wake_two),
        cmocka_unit_test(wake_up_for_another_slot_is_passed_on),
        cmocka_unit_test(wake_up_of_one_that_gives_up_is_passed_on),
        cmocka_unit_test(events_overtake_a_try),
        cmocka_unit_test(busy_slot_does_not_hide_a_free_one),
        cmocka_unit_test(release_while_all_are_away),
        cmocka_unit_test(another_is_woken_for_one_that_is_away),
        cmocka_unit_test(lost_notifications_make_each_slot_be_tried_once),
        cmocka_unit_test(crowd_costs_one_try_per_release),
        cmocka_unit_test(expiry_of_any_slot_is_noticed),
        cmocka_unit_test(retries_try_one_slot_each),
        cmocka_unit_test(deadline_ends_the_waiting),
        cmocka_unit_test(store_that_is_down_is_waited_out),
        cmocka_unit_test(store_that_hangs_uses_up_the_retries),
        cmocka_unit_test(silent_store_is_polled_one_slot_at_a_time),
        cmocka_unit_test(polls_are_limited_for_all_slots_together),
        cmocka_unit_test(queue_waits_for_slots),
        cmocka_unit_test(queue_ends_waiting_for_slots),
        cmocka_unit_test(forked_child_forgets_the_waiting),
    };
    return cmocka_run_group_tests_name("slots", tests, NULL, NULL);
}
