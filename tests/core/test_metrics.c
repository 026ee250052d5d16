/*
 * What telemetry counts besides operations, and what is logged: losses by reason, renewals, undone
 * acquires, reconnects, held and waiting locks. Each loss is counted and logged once, no matter
 * which call finds it; no line has a key or a lock id; a store that fails does not flood the log.
 */

#include <sys/wait.h>
#include <unistd.h>

#include "core/incidents.h"
#include "fake_backend.h"
#include "test_assert.h"

#define KEY "the-s3cret-key"

/* ---- the log, and the text ---- */

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_lines[4000][300];
static syncguard_log_level log_levels[4000];
static int log_count;

static void metrics_keep_line(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    pthread_mutex_lock(&log_mutex);
    if (log_count < 4000) {
        log_levels[log_count] = level;
        snprintf(log_lines[log_count++], sizeof log_lines[0], "%s", message);
    }
    pthread_mutex_unlock(&log_mutex);
}

/* Counts the lines with this text; the last one is copied to line. */
static int lines_with(const char *text, char line[300])
{
    int found = 0;
    pthread_mutex_lock(&log_mutex);
    for (int i = 0; i < log_count; i++) {
        assert_null(strstr(log_lines[i], KEY));
        if (strstr(log_lines[i], text) != NULL) {
            found++;
            if (line != NULL)
                memcpy(line, log_lines[i], 300);
        }
    }
    pthread_mutex_unlock(&log_mutex);
    return found;
}

static bool wait_for_line(const char *text)
{
    for (int i = 0; i < 30000 && lines_with(text, NULL) == 0; i++)
        test_sleep_ms(1);
    return lines_with(text, NULL) > 0;
}

static fake_backend *fake;

static syncguard_backend *metrics_open_counted(void)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = metrics_keep_line;
    log_count = 0;
    fake = fake_backend_open(&options);
    assert_non_null(fake);
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.handle_name = "h";
    syncguard_backend *decorated = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&fake->base, &telemetry, &decorated, NULL),
                     SYNCGUARD_OK);
    return decorated;
}

/* The value of a series of that handle; labels are those after the common ones. */
static long metrics_read_value(const syncguard_backend *backend, const char *name,
                               const char *labels)
{
    static char text[65536];
    char series[200];
    assert_in_range(syncguard_telemetry_prometheus(backend, text, sizeof text), 1, sizeof text - 1);
    snprintf(series, sizeof series, "\n%s{backend=\"fake\",handle=\"h\"%s%s} ", name,
             *labels != '\0' ? "," : "", labels);
    const char *at = strstr(text, series);
    if (at == NULL) {
        print_error("there is no%s\n", series);
        return -1;
    }
    return strtol(at + strlen(series), NULL, 10);
}

static bool wait_for_value(const syncguard_backend *backend, const char *name, const char *labels,
                           long target)
{
    for (int i = 0; i < 30000 && metrics_read_value(backend, name, labels) < target; i++)
        test_sleep_ms(1);
    return metrics_read_value(backend, name, labels) >= target;
}

static long metrics_count_lost(const syncguard_backend *backend, const char *reason)
{
    char label[40];
    snprintf(label, sizeof label, "reason=\"%s\"", reason);
    return metrics_read_value(backend, "syncguard_locks_lost_total", label);
}

static syncguard_lock *metrics_take_lock(syncguard_backend *backend, const char *key,
                                         int64_t ttl_ms, bool auto_extend, int64_t max_hold_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.auto_extend = auto_extend;
    options.max_hold_ms = max_hold_ms;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(backend, key, &options, &lock, NULL), SYNCGUARD_OK);
    return lock;
}

/* ---- held and waiting ---- */

static atomic_bool key_is_held;

static syncguard_status metrics_answer_acquire(fake_backend *p, syncguard_acquire_op *op,
                                               syncguard_error *err)
{
    (void)p, (void)err;
    op->remaining_ms = -1;
    return atomic_load(&key_is_held) ? SYNCGUARD_LOCKED : SYNCGUARD_OK;
}

static void *metrics_wait_for_key(void *argument)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_lock *lock = NULL;
    options.retry_delay_ms = 5;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    if (syncguard_lock_acquire(argument, KEY, &options, &lock, NULL) != SYNCGUARD_OK)
        return NULL;
    syncguard_lock_dispose(lock);
    return argument;
}

static void held_and_waiting(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    (void)state;
    syncguard_lock *lock = metrics_take_lock(backend, "a", 30000, false, 0);
    syncguard_lock *detached = metrics_take_lock(backend, "b", 30000, false, 0);
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 2);
    atomic_store(&key_is_held, true);
    fake->on_acquire = metrics_answer_acquire;
    pthread_t waiter = test_start_thread(metrics_wait_for_key, backend);
    assert_true(wait_for_value(backend, "syncguard_acquires_waiting", "", 1));
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 2);
    atomic_store(&key_is_held, false);
    void *done = NULL;
    pthread_join(waiter, &done);
    assert_ptr_equal(done, backend);
    assert_int_equal(metrics_read_value(backend, "syncguard_acquires_waiting", ""), 0);
    assert_int_equal(metrics_read_value(backend, "syncguard_wait_seconds_count", ""), 3);
    assert_int_equal(metrics_read_value(backend, "syncguard_hold_seconds_count", ""), 1);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_OK);
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 1);
    syncguard_lock_dispose(lock);
    syncguard_lock_detach(detached);
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 0);
    assert_int_equal(metrics_read_value(backend, "syncguard_hold_seconds_count", ""), 3);
    assert_int_equal(log_count, 0);
    syncguard_close(backend);
}

/* The counters of a handle without telemetry stay zero. */
static void nothing_is_counted_without_telemetry(void **state)
{
    fake_backend *p = fake_backend_open(NULL);
    const sg_counters *counters = p->base.core->counters;
    (void)state;
    syncguard_lock *lock = metrics_take_lock(&p->base, "k", 30000, false, 0);
    syncguard_backend_reconnected(&p->base);
    sg_lock_lose(lock, SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    const sg_counters zero = {.on = false};
    assert_memory_equal(counters, &zero, sizeof zero);
    syncguard_close(&p->base);
}

/* ---- losses ---- */

static syncguard_status not_there(fake_backend *p, syncguard_release_op *op, syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    return SYNCGUARD_ABSENT;
}

static void a_renewal_finds_the_lock_gone(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    (void)state;
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(KEY, hash));
    atomic_store(&fake->on_extend, fake_extend_absent);
    syncguard_lock *lock = metrics_take_lock(backend, KEY, 1500, true, 0);
    assert_true(wait_for_value(backend, "syncguard_locks_lost_total", "reason=\"absent\"", 1));
    assert_true(wait_for_line("is lost"));
    char line[300];
    assert_int_equal(lines_with("is lost", line), 1);
    assert_non_null(strstr(line, hash));
    assert_null(strstr(line, syncguard_lock_id(lock)));
    assert_int_equal(log_levels[log_count - 1], SYNCGUARD_LOG_ERROR);
    assert_int_equal(metrics_read_value(backend, "syncguard_renewals_total", "result=\"absent\""),
                     1);
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 0);
    /* A later query finds the same loss. */
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_ABSENT);
    syncguard_lock_dispose(lock);
    assert_int_equal(metrics_count_lost(backend, "absent"), 1);
    assert_int_equal(lines_with("is lost", NULL), 1);
    assert_int_equal(metrics_read_value(backend, "syncguard_hold_seconds_count", ""), 1);
    syncguard_close(backend);
}

static void losses_have_their_reason(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    (void)state;
    fake->on_release = not_there;
    /* No call asks before the lease is over. */
    syncguard_lock *unasked = metrics_take_lock(backend, KEY, 300, false, 0);
    syncguard_lock *asked = metrics_take_lock(backend, "asked", 300, false, 0);
    syncguard_lock *old = metrics_take_lock(backend, "old", 600, true, 1);
    /* The lock was taken away, and no call noticed until the release. */
    syncguard_lock *taken = metrics_take_lock(backend, "taken", 30000, false, 0);
    assert_int_equal(syncguard_lock_release(taken, NULL, NULL), SYNCGUARD_ABSENT);
    assert_int_equal(metrics_count_lost(backend, "absent"), 1);
    test_sleep_ms(700);
    assert_false(syncguard_lock_held(asked));
    assert_int_equal(metrics_count_lost(backend, "unconfirmed"), 1);
    syncguard_lock_dispose(unasked);
    syncguard_lock_dispose(asked);
    assert_int_equal(metrics_count_lost(backend, "unconfirmed"), 2);
    assert_true(wait_for_value(backend, "syncguard_locks_lost_total", "reason=\"max-hold\"", 1));
    syncguard_lock_dispose(old);
    syncguard_lock_dispose(taken);
    assert_int_equal(metrics_count_lost(backend, "absent"), 1);
    assert_int_equal(metrics_count_lost(backend, "unconfirmed"), 2);
    assert_int_equal(metrics_count_lost(backend, "max-hold"), 1);
    assert_int_equal(lines_with("is lost", NULL), 4);
    assert_int_equal(lines_with("the store no longer has it", NULL), 1);
    assert_int_equal(lines_with("max_hold_ms is over", NULL), 1);
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 0);
    syncguard_close(backend);
}

/* ---- renewals ---- */

static syncguard_status metrics_fail_extend(fake_backend *p, syncguard_extend_op *op,
                                            syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "the server is gone");
}

static void renewals_by_result(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    (void)state;
    atomic_store(&fake->on_extend, metrics_fail_extend);
    syncguard_lock *lock = metrics_take_lock(backend, KEY, 6000, true, 0);
    assert_true(wait_for_value(backend, "syncguard_renewals_total", "result=\"failed\"", 1));
    assert_true(wait_for_line("renewing 1 of 1 locks failed"));
    char line[300];
    lines_with("renewing", line);
    assert_non_null(strstr(line, "the server is gone"));
    assert_null(strstr(line, syncguard_lock_id(lock)));
    atomic_store(&fake->on_extend, NULL);
    assert_true(wait_for_value(backend, "syncguard_renewals_total", "result=\"confirmed\"", 1));
    assert_int_equal(metrics_count_lost(backend, "unconfirmed"), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}

/* A hang that ends in time leaves a line; an interrupted request leaves none. */
static void slow_renewals_are_logged(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    (void)state;
    syncguard_error none;
    syncguard_error_clear(&none);
    int64_t now = syncguard_clock_ns();
    syncguard_extend_op items[2] = {{.status = SYNCGUARD_OK}, {.status = SYNCGUARD_OK}};
    sg_incidents_renewed(backend, items, 2, now, &none);
    assert_int_equal(log_count, 0);
    sg_incidents_renewed(backend, items, 2, now - 3100 * SYNCGUARD_NS_PER_MS, &none);
    assert_int_equal(lines_with("renewing 2 locks took 3.", NULL), 1);
    items[0].status = items[1].status = SYNCGUARD_E_ABORTED;
    sg_incidents_renewed(backend, items, 2, now, &none);
    assert_int_equal(log_count, 1);
    assert_int_equal(
        metrics_read_value(backend, "syncguard_renewals_total", "result=\"confirmed\""), 4);
    assert_int_equal(metrics_read_value(backend, "syncguard_renewals_total", "result=\"failed\""),
                     0);
    syncguard_close(backend);
}

/* ---- the log is not flooded ---- */

static void lines_per_minute_are_limited(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    static syncguard_lock *locks[100];
    (void)state;
    for (int i = 0; i < 50; i++)
        syncguard_backend_reconnected(&fake->base);
    assert_int_equal(metrics_read_value(backend, "syncguard_reconnects_total", ""), 50);
    assert_int_equal(lines_with("replaced", NULL), SG_INCIDENT_LINES);
    fake->base.core->incidents.limits[SG_INCIDENT_RECONNECT].minute_ends_ns = 0; /* it is over */
    syncguard_backend_reconnected(&fake->base);
    char line[300];
    assert_int_equal(lines_with("replaced", line), SG_INCIDENT_LINES + 1);
    assert_non_null(strstr(line, "(40 similar ones were not logged)"));
    char key[16];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = metrics_take_lock(backend, key, 30000, false, 0);
    }
    for (int i = 0; i < 100; i++)
        sg_lock_lose(locks[i], SYNCGUARD_LOST_UNCONFIRMED); /* as under the heartbeat's mutex */
    assert_int_equal(lines_with("is lost", NULL), 0);
    for (int i = 0; i < 100; i++)
        syncguard_lock_dispose(locks[i]);
    assert_int_equal(lines_with("is lost", NULL), SG_INCIDENT_LINES);
    assert_int_equal(metrics_count_lost(backend, "unconfirmed"), 100);
    backend->core->incidents.limits[SG_INCIDENT_LOST].minute_ends_ns = 0;
    syncguard_lock *last = metrics_take_lock(backend, "last", 30000, false, 0);
    sg_lock_lose(last, SYNCGUARD_LOST_UNCONFIRMED);
    syncguard_lock_dispose(last);
    assert_int_equal(lines_with("is lost", line), SG_INCIDENT_LINES + 1);
    assert_non_null(strstr(line, "(6 similar ones were not logged)"));
    assert_int_equal(lines_with("(84 similar", NULL), 1); /* more than may wait to be logged */
    syncguard_close(backend);
}

/* ---- undone acquires ---- */

static syncguard_status only_once(fake_backend *p, int call)
{
    (void)p;
    return call == 1 ? SYNCGUARD_OK : SYNCGUARD_ABSENT;
}

static void undone_acquires(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    (void)state;
    fake->on_acquire = fake_acquire_unknown;
    fake->on_undo = only_once;
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(backend, KEY, 30000, NULL, &grant, NULL),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(
        wait_for_value(backend, "syncguard_acquires_undone_total", "result=\"confirmed\"", 1));
    assert_int_equal(
        metrics_read_value(backend, "syncguard_acquires_undone_total", "result=\"expired\""), 0);
    assert_int_equal(syncguard_acquire(backend, KEY, 100, NULL, &grant, NULL),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(
        wait_for_value(backend, "syncguard_acquires_undone_total", "result=\"expired\"", 1));
    assert_int_equal(
        metrics_read_value(backend, "syncguard_acquires_undone_total", "result=\"confirmed\""), 1);
    syncguard_close(backend);
}

/* ---- labels ---- */

static syncguard_status wrap_with(const syncguard_label *labels, size_t count,
                                  syncguard_backend **out)
{
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    fake_backend *p = fake_backend_open(NULL);
    options.handle_name = "h";
    options.labels = labels;
    options.label_count = count;
    syncguard_status status = syncguard_telemetry_wrap(&p->base, &options, out, NULL);
    if (status != SYNCGUARD_OK)
        syncguard_close(&p->base);
    return status;
}

static void labels_are_checked(void **state)
{
    (void)state;
    char long_text[300];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    const char *bad_names[] = {"", "1st", "__own", "a-b", "le", "handle", "reason", "\xC3\xA9"};
    syncguard_label one = {"service", "billing"};
    syncguard_backend *backend = NULL;
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++) {
        one.name = bad_names[i];
        assert_int_equal(wrap_with(&one, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    }
    one.name = NULL;
    assert_int_equal(wrap_with(&one, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    one.name = long_text;
    assert_int_equal(wrap_with(&one, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    one = (syncguard_label){"service", NULL};
    assert_int_equal(wrap_with(&one, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    one.value = "\xFF";
    assert_int_equal(wrap_with(&one, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    one.value = long_text;
    assert_int_equal(wrap_with(&one, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(wrap_with(NULL, 1, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
    syncguard_label many[SYNCGUARD_MAX_LABELS + 1];
    char names[SYNCGUARD_MAX_LABELS + 1][8];
    for (size_t i = 0; i <= SYNCGUARD_MAX_LABELS; i++) {
        snprintf(names[i], sizeof names[i], "l%zu", i);
        many[i] = (syncguard_label){names[i], "v"};
    }
    assert_int_equal(wrap_with(many, SYNCGUARD_MAX_LABELS + 1, &backend),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    many[5].name = "l0";
    assert_int_equal(wrap_with(many, SYNCGUARD_MAX_LABELS, &backend), SYNCGUARD_E_INVALID_ARGUMENT);
}

static void labels_are_escaped(void **state)
{
    static char text[65536];
    static char names[SYNCGUARD_MAX_LABELS][SYNCGUARD_MAX_LABEL_NAME + 1];
    static char quotes[SYNCGUARD_MAX_LABEL_VALUE + 1];
    (void)state;
    const syncguard_label labels[] = {
        {"service", "a \"b\" \\ c\nd"}, {"_region2", "M\xC3\xBCnchen"}, {"empty", ""}};
    syncguard_backend *backend = NULL;
    assert_int_equal(wrap_with(labels, 3, &backend), SYNCGUARD_OK);
    assert_in_range(syncguard_telemetry_prometheus(backend, text, sizeof text), 1, sizeof text - 1);
    assert_non_null(strstr(text, "syncguard_locks_held{backend=\"fake\",handle=\"h\","
                                 "service=\"a \\\"b\\\" \\\\ c\\nd\",_region2=\"M\xC3\xBCnchen\","
                                 "empty=\"\"} 0\n"));
    syncguard_close(backend);

    /* The longest possible text. */
    memset(quotes, '"', sizeof quotes - 1);
    syncguard_label full[SYNCGUARD_MAX_LABELS];
    for (size_t i = 0; i < SYNCGUARD_MAX_LABELS; i++) {
        memset(names[i], 'a', SYNCGUARD_MAX_LABEL_NAME);
        names[i][0] = (char)('a' + i);
        full[i] = (syncguard_label){names[i], quotes};
    }
    assert_int_equal(wrap_with(full, SYNCGUARD_MAX_LABELS, &backend), SYNCGUARD_OK);
    assert_true(syncguard_telemetry_prometheus(backend, NULL, 0) >
                100 * SYNCGUARD_MAX_LABELS * 2 * SYNCGUARD_MAX_LABEL_VALUE);
    syncguard_close(backend);
}

/* ---- fork ---- */

/* The thread sanitizer does not follow a fork of a program with threads. */
#ifndef __SANITIZE_THREAD__
static void a_child_holds_nothing(void **state)
{
    syncguard_backend *backend = metrics_open_counted();
    syncguard_lock *lock = metrics_take_lock(backend, KEY, 30000, false, 0);
    (void)state;
    syncguard_backend_reconnected(&fake->base);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool locked = false;
        alarm(20);
        if (syncguard_is_locked(backend, "k", NULL, &locked, NULL) != SYNCGUARD_OK)
            _exit(1);
        syncguard_lock_dispose(lock);
        if (metrics_read_value(backend, "syncguard_locks_held", "") != 0 ||
            metrics_read_value(backend, "syncguard_hold_seconds_count", "") != 0 ||
            metrics_read_value(backend, "syncguard_reconnects_total", "") != 0)
            _exit(2);
        syncguard_lock *own = metrics_take_lock(backend, "own", 30000, false, 0);
        bool counted = metrics_read_value(backend, "syncguard_locks_held", "") == 1;
        syncguard_lock_dispose(own);
        syncguard_close(backend);
        _exit(counted ? 0 : 3);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(metrics_read_value(backend, "syncguard_locks_held", ""), 1);
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_and_waiting),
        cmocka_unit_test(nothing_is_counted_without_telemetry),
        cmocka_unit_test(a_renewal_finds_the_lock_gone),
        cmocka_unit_test(losses_have_their_reason),
        cmocka_unit_test(renewals_by_result),
        cmocka_unit_test(slow_renewals_are_logged),
        cmocka_unit_test(lines_per_minute_are_limited),
        cmocka_unit_test(undone_acquires),
        cmocka_unit_test(labels_are_checked),
        cmocka_unit_test(labels_are_escaped),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(a_child_holds_nothing),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
