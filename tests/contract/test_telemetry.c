/*
 * The telemetry decorator: events, drops, counters, and that a bare handle has none of them. These
 * tests put decorators of their own over the store; the whole suite, run with --telemetry, shows
 * that the decorator breaks nothing.
 */
#include "contract.h"

#include <ctype.h>

/* A decorated handle over the suite's URL. */
static syncguard_backend *telemetry_open_decorated(const syncguard_telemetry_options *options)
{
    syncguard_backend *bare = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(contract.url, NULL, &bare, &err));
    syncguard_backend *decorated = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, options, &decorated, &err));
    assert_non_null(decorated);
    return decorated;
}

static syncguard_backend *decorate_recording(bool include_raw)
{
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = record_event;
    options.include_raw = include_raw;
    return telemetry_open_decorated(&options);
}

static void check_event(event_filter filter, size_t number, bool ok, syncguard_event_reason reason)
{
    syncguard_event event;
    size_t found = await_events(filter, number, &event);
    assert_int_equal(found, number);
    assert_int_equal(event.ok, ok);
    assert_int_equal(event.reason, reason);
    assert_int_equal(event.error, SYNCGUARD_OK);
    assert_between(0, 60000000, event.duration_us);
    assert_string_equal(event.key, "");
    assert_string_equal(event.lock_id, "");
    assert_int_equal(strlen(event.key_hash), filter.key != NULL ? SYNCGUARD_HASH_CHARS : 0);
    assert_int_equal(strlen(event.lock_id_hash), filter.lock_id != NULL ? SYNCGUARD_HASH_CHARS : 0);
}

static void every_operation_is_an_event(void **state)
{
    syncguard_backend *watched = decorate_recording(false);
    key name = fresh_key("events"), idle = fresh_key("idle");
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(watched, name.text, 30000, NULL, &grant, &err));
    check_event((event_filter){SYNCGUARD_EVENT_ACQUIRE, name.text, grant.lock_id}, 1, true,
                SYNCGUARD_REASON_NONE);
    syncguard_grant other;
    assert_status(SYNCGUARD_LOCKED,
                  syncguard_acquire(watched, name.text, 30000, NULL, &other, &err));
    check_event((event_filter){SYNCGUARD_EVENT_ACQUIRE, name.text, NULL}, 2, false,
                SYNCGUARD_REASON_LOCKED);
    assert_status(SYNCGUARD_OK, syncguard_extend(watched, grant.lock_id, 30000, NULL, NULL, &err));
    check_event((event_filter){SYNCGUARD_EVENT_EXTEND, NULL, grant.lock_id}, 1, true,
                SYNCGUARD_REASON_NONE);
    bool flag = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(watched, name.text, NULL, &flag, &err));
    check_event((event_filter){SYNCGUARD_EVENT_IS_LOCKED, name.text, NULL}, 1, true,
                SYNCGUARD_REASON_NONE);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(watched, idle.text, NULL, &flag, &err));
    check_event((event_filter){SYNCGUARD_EVENT_IS_LOCKED, idle.text, NULL}, 1, false,
                SYNCGUARD_REASON_NONE);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(watched, name.text, NULL, &info, &err));
    check_event((event_filter){SYNCGUARD_EVENT_LOOKUP, name.text, NULL}, 1, true,
                SYNCGUARD_REASON_NONE);
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(watched, idle.text, NULL, &info, &err));
    check_event((event_filter){SYNCGUARD_EVENT_LOOKUP, idle.text, NULL}, 1, false,
                SYNCGUARD_REASON_NONE);
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(watched, grant.lock_id, NULL, &info, &err));
    check_event((event_filter){SYNCGUARD_EVENT_LOOKUP, NULL, grant.lock_id}, 1, true,
                SYNCGUARD_REASON_NONE);
    assert_status(SYNCGUARD_OK, syncguard_owns(watched, grant.lock_id, NULL, &flag, &err));
    check_event((event_filter){SYNCGUARD_EVENT_LOOKUP, NULL, grant.lock_id}, 2, true,
                SYNCGUARD_REASON_NONE);
    assert_status(SYNCGUARD_OK, syncguard_release(watched, grant.lock_id, NULL, &err));
    check_event((event_filter){SYNCGUARD_EVENT_RELEASE, NULL, grant.lock_id}, 1, true,
                SYNCGUARD_REASON_NONE);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(watched, grant.lock_id, NULL, &err));
    check_event((event_filter){SYNCGUARD_EVENT_RELEASE, NULL, grant.lock_id}, 2, false,
                SYNCGUARD_REASON_NOT_FOUND);
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(watched, grant.lock_id, 30000, NULL, NULL, &err));
    check_event((event_filter){SYNCGUARD_EVENT_EXTEND, NULL, grant.lock_id}, 2, false,
                SYNCGUARD_REASON_NOT_FOUND);
    assert_true(syncguard_telemetry_dropped(watched) == 0);
    syncguard_close(watched);
}

static void list_and_refused_arguments_are_no_events(void **state)
{
    syncguard_backend *watched = decorate_recording(false);
    (void)state;
    test_sleep_ms(100);
    event_filter any = {-1, NULL, NULL};
    size_t before = count_events(any, NULL);
    int calls = 0;
    assert_status(SYNCGUARD_OK, syncguard_list(watched, NULL, test_count_info, &calls, &err));
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(watched, "", 1000, NULL, &grant, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(watched, "x", NULL, &err));
    test_sleep_ms(100);
    assert_int_equal(count_events(any, NULL), before);
    syncguard_close(watched);
}

static void expired_locks_have_their_reason(void **state)
{
    syncguard_backend *watched = decorate_recording(false);
    key names[2] = {fresh_key("expired"), fresh_key("expired")};
    (void)state;
    syncguard_grant grants[2];
    for (int i = 0; i < 2; i++)
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(watched, names[i].text, 600, NULL, &grants[i], &err));
    test_sleep_ms(2200);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(watched, grants[0].lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(watched, grants[1].lock_id, 1000, NULL, NULL, &err));
    syncguard_event event;
    for (int i = 0; i < 2; i++) {
        event_filter filter = {i == 0 ? SYNCGUARD_EVENT_RELEASE : SYNCGUARD_EVENT_EXTEND, NULL,
                               grants[i].lock_id};
        assert_int_equal(await_events(filter, 1, &event), 1);
        assert_false(event.ok);
        assert_int_equal(event.reason, able()->keeps_expired ? SYNCGUARD_REASON_EXPIRED
                                                             : SYNCGUARD_REASON_NOT_FOUND);
        assert_int_equal(event.error, SYNCGUARD_OK);
    }
    syncguard_close(watched);
}

static void raw_names_only_if_asked_for(void **state)
{
    key name = fresh_key("s3cret");
    event_filter filter = {SYNCGUARD_EVENT_ACQUIRE, name.text, NULL};
    (void)state;
    syncguard_event event;
    syncguard_grant grant;
    for (int raw = 0; raw < 2; raw++) {
        syncguard_backend *watched = decorate_recording(raw == 1);
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(watched, name.text, 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(watched, grant.lock_id, NULL, &err));
        syncguard_close(watched); /* delivers what is queued */
        assert_int_equal(count_events(filter, &event), (size_t)raw + 1);
        if (raw == 1) {
            assert_string_equal(event.key, name.text);
            assert_string_equal(event.lock_id, grant.lock_id);
        } else {
            assert_null(memmem(&event, sizeof event, "s3cret", 6));
            assert_null(memmem(&event, sizeof event, grant.lock_id, 22));
        }
    }
}

typedef struct slow_listener {
    atomic_int calls;
    atomic_bool blocked;
} slow_listener;

static void listen_slowly(void *context, const syncguard_event *event)
{
    slow_listener *self = context;
    (void)event;
    atomic_fetch_add(&self->calls, 1);
    while (atomic_load(&self->blocked))
        test_sleep_ms(5);
}

static void blocked_callback_delays_nobody(void **state)
{
    key name = fresh_key("slow");
    (void)state;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = listen_slowly;
    slow_listener listener = {.blocked = true};
    options.on_event_context = &listener;
    options.queue_length = 10;
    syncguard_backend *watched = telemetry_open_decorated(&options);
    bool flag = false;
    int64_t worst = 0;
    for (int i = 0; i < 200; i++) {
        int64_t started = test_now_ms();
        assert_status(SYNCGUARD_OK, syncguard_is_locked(watched, name.text, NULL, &flag, &err));
        if (test_now_ms() - started > worst)
            worst = test_now_ms() - started;
    }
    assert_at_most(1500, worst);
    /* One in the callback, ten in the queue; the rest is counted. */
    assert_in_range(syncguard_telemetry_dropped(watched), 189, 190);
    atomic_store(&listener.blocked, false);
    syncguard_close(watched);
    assert_in_range(atomic_load(&listener.calls), 10, 11);
}

static void errors_are_events_too(void **state)
{
    syncguard_backend *watched = decorate_recording(false);
    key name = fresh_key("error");
    event_filter filter = {SYNCGUARD_EVENT_ACQUIRE, name.text, NULL};
    (void)state;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    /* The shortest deadline: a remote store can hardly meet it, a near one does. */
    call.timeout_ms = 1;
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(watched, name.text, 30000, &call, &grant, &err);
    if (status == SYNCGUARD_OK)
        assert_status(SYNCGUARD_OK, syncguard_release(watched, grant.lock_id, NULL, &err));
    else
        assert_status(SYNCGUARD_E_NETWORK_TIMEOUT, status);
    syncguard_close(watched); /* delivers what is queued */
    syncguard_event event;
    /* No event if the millisecond was over before anything could be sent. */
    if (count_events(filter, &event) > 0) {
        assert_int_equal(event.ok, status == SYNCGUARD_OK);
        assert_int_equal(event.error, status);
        assert_int_equal(event.reason, SYNCGUARD_REASON_NONE);
    }
}

static void names_of_events(void **state)
{
    (void)state;
    assert_string_equal(syncguard_event_type_name(SYNCGUARD_EVENT_ACQUIRE), "acquire");
    assert_string_equal(syncguard_event_type_name(SYNCGUARD_EVENT_RELEASE), "release");
    assert_string_equal(syncguard_event_type_name(SYNCGUARD_EVENT_EXTEND), "extend");
    assert_string_equal(syncguard_event_type_name(SYNCGUARD_EVENT_IS_LOCKED), "isLocked");
    assert_string_equal(syncguard_event_type_name(SYNCGUARD_EVENT_LOOKUP), "lookup");
    assert_string_equal(syncguard_event_reason_name(SYNCGUARD_REASON_NONE), "");
    assert_string_equal(syncguard_event_reason_name(SYNCGUARD_REASON_LOCKED), "locked");
    assert_string_equal(syncguard_event_reason_name(SYNCGUARD_REASON_EXPIRED), "expired");
    assert_string_equal(syncguard_event_reason_name(SYNCGUARD_REASON_NOT_FOUND), "not-found");
}

/* The value of the sample that begins with these words, or -1. */
static double telemetry_sample_value(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    return at != NULL ? strtod(at + strlen(words), NULL) : -1;
}

/* One line of the exposition format: a comment, or a name, labels and a value. */
static bool well_formed(const char *line, size_t length)
{
    if (length > 7 && (strncmp(line, "# HELP ", 7) == 0 || strncmp(line, "# TYPE ", 7) == 0))
        return true;
    size_t at = 0;
    while (at < length && (isalnum((unsigned char)line[at]) || line[at] == '_'))
        at++;
    if (at == 0)
        return false;
    if (line[at] == '{') {
        const char *end = memchr(line + at, '}', length - at);
        if (end == NULL)
            return false;
        at = (size_t)(end - line) + 1;
    }
    if (at + 1 >= length || line[at] != ' ')
        return false;
    for (at++; at < length; at++) {
        if (!isdigit((unsigned char)line[at]) && line[at] != '.')
            return false;
    }
    return true;
}

static void check_format(const char *text)
{
    while (*text != '\0') {
        const char *end = strchr(text, '\n');
        assert_non_null(end);
        if (!well_formed(text, (size_t)(end - text)))
            fail_msg("not a line of metrics: %.*s", (int)(end - text), text);
        text = end + 1;
    }
}

/* A series of the handle that is named "metrics-1"; labels are those after the common ones. */
static double sample_of(const char *text, const char *name, const char *labels)
{
    char series[300];
    snprintf(series, sizeof series, "%s{backend=\"%s\",handle=\"metrics-1\"%s%s}", name,
             syncguard_capabilities_get(store)->backend, labels[0] != '\0' ? "," : "", labels);
    return telemetry_sample_value(text, series);
}

static void counters_in_prometheus_text(void **state)
{
    key name = fresh_key("metrics");
    (void)state;
    syncguard_backend *bare = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(contract.url, NULL, &bare, &err));
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.handle_name = "metrics-1";
    syncguard_backend *counted = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, &telemetry, &counted, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(counted, name.text, NULL, &lock, &err));
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 2;
    options.retry_delay_ms = 5;
    syncguard_lock *second = NULL;
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire(counted, name.text, &options, &second, &err));
    syncguard_lock_dispose(lock);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(counted, FOREIGN_ID, NULL, &err));
    size_t length = syncguard_telemetry_prometheus(counted, NULL, 0);
    assert_true(length > 1000);
    char small[64];
    assert_true(syncguard_telemetry_prometheus(counted, small, sizeof small) == length);
    assert_int_equal(strlen(small), sizeof small - 1);
    char *text = malloc(length + 1);
    assert_non_null(text);
    assert_true(syncguard_telemetry_prometheus(counted, text, length + 1) == length);
    assert_int_equal(strlen(text), length);
    check_format(text);
    assert_null(strstr(text, name.text));
    assert_true(sample_of(text, "syncguard_operations_total",
                          "type=\"acquire\",result=\"ok\",reason=\"\",error=\"\"") == 1);
    /* Three counted tries, one after joining the waiters, and some after notifications without
     * effect. */
    double failed = sample_of(text, "syncguard_operations_total",
                              "type=\"acquire\",result=\"fail\",reason=\"locked\",error=\"\"");
    assert_true(failed >= 3 && failed <= 6);
    assert_true(sample_of(text, "syncguard_operations_total",
                          "type=\"release\",result=\"ok\",reason=\"\",error=\"\"") == 1);
    assert_true(sample_of(text, "syncguard_operation_duration_seconds_count", "type=\"acquire\"") ==
                failed + 1);
    assert_true(sample_of(text, "syncguard_operation_duration_seconds_bucket",
                          "type=\"acquire\",le=\"+Inf\"") == failed + 1);
    assert_true(sample_of(text, "syncguard_operation_duration_seconds_sum", "type=\"acquire\"") >
                0);
    assert_true(sample_of(text, "syncguard_wait_seconds_count", "") >= 1);
    assert_true(sample_of(text, "syncguard_wait_attempts_sum", "") >= 3);
    assert_true(sample_of(text, "syncguard_events_dropped_total", "") == 0);
    free(text);
    syncguard_close(counted);
}

static void keep_loss(void *context, syncguard_log_level level, const char *message)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    char *line = context;
    pthread_mutex_lock(&mutex);
    if (level == SYNCGUARD_LOG_ERROR && line[0] == '\0')
        snprintf(line, 300, "%s", message);
    pthread_mutex_unlock(&mutex);
}

/* Waits until a series has this value; false if it never does. */
static bool await_sample(const syncguard_backend *counted, const char *name, const char *labels,
                         double value)
{
    static char text[65536];
    for (int i = 0; i < 3000; i++) {
        (void)syncguard_telemetry_prometheus(counted, text, sizeof text);
        if (sample_of(text, name, labels) == value)
            return true;
        test_sleep_ms(10);
    }
    return false;
}

/* Another handle releases the lock: the next renewal finds it gone, which is counted and logged
 * once, without the key. */
static void lost_locks_are_counted_and_logged(void **state)
{
    static char line[300];
    key name = fresh_key("taken-away");
    (void)state;
    line[0] = '\0';
    syncguard_options common = SYNCGUARD_OPTIONS_INIT;
    common.log = keep_loss;
    common.log_context = line;
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.handle_name = "metrics-1";
    syncguard_backend *bare = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(contract.url, &common, &bare, &err));
    syncguard_backend *counted = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, &telemetry, &counted, &err));
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 6000;
    options.auto_extend = true;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(counted, name.text, &options, &lock, &err));
    assert_true(await_sample(counted, "syncguard_locks_held", "", 1));
    assert_status(SYNCGUARD_OK, syncguard_release(counted, syncguard_lock_id(lock), NULL, &err));
    assert_true(await_sample(counted, "syncguard_locks_lost_total", "reason=\"absent\"", 1));
    assert_true(await_sample(counted, "syncguard_renewals_total", "result=\"absent\"", 1));
    assert_true(await_sample(counted, "syncguard_locks_held", "", 0));
    assert_true(await_sample(counted, "syncguard_hold_seconds_count", "", 1));
    syncguard_lock_dispose(lock);
    assert_true(await_sample(counted, "syncguard_locks_lost_total", "reason=\"absent\"", 1));
    syncguard_close(counted); /* the logging thread has ended */
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(name.text, hash));
    assert_non_null(strstr(line, hash));
    assert_null(strstr(line, name.text));
}

/* The first line that is no comment. */
static void first_series(const syncguard_backend *backend, char line[300])
{
    static char text[32768];
    assert_in_range(syncguard_telemetry_prometheus(backend, text, sizeof text), 1, sizeof text - 1);
    const char *at = text;
    while (*at == '#')
        at = strchr(at, '\n') + 1;
    snprintf(line, 300, "%.*s", (int)strcspn(at, " "), at);
}

static void two_handles_have_series_of_their_own(void **state)
{
    syncguard_backend *one = telemetry_open_decorated(NULL),
                      *other = telemetry_open_decorated(NULL);
    (void)state;
    char series[2][300];
    first_series(one, series[0]);
    first_series(other, series[1]);
    assert_string_not_equal(series[0], series[1]);
    syncguard_close(one);
    syncguard_close(other);
}

static void bad_telemetry_options_are_refused(void **state)
{
    key name = fresh_key("not-wrapped");
    (void)state;
    syncguard_backend *bare = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(contract.url, NULL, &bare, &err));
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.size = 2;
    syncguard_backend *decorated = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_telemetry_wrap(bare, &options, &decorated, &err));
    assert_null(decorated);
    syncguard_telemetry_options_init(&options, sizeof options);
    options.on_event = record_event;
    options.queue_length = SIZE_MAX / 2;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_telemetry_wrap(bare, &options, &decorated, &err));
    syncguard_telemetry_options_init(&options, sizeof options);
    const char *bad_names[] = {"",
                               "with blank",
                               "quote\"",
                               "back\\slash",
                               "line\n",
                               "\xC3\xA9",
                               "12345678901234567890123456789012345678901234567890123456789012345"};
    for (size_t i = 0; i < sizeof bad_names / sizeof bad_names[0]; i++) {
        options.handle_name = bad_names[i];
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_telemetry_wrap(bare, &options, &decorated, &err));
    }
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_telemetry_wrap(NULL, NULL, &decorated, &err));
    syncguard_grant grant;
    /* The bare handle still belongs to the caller, and works. */
    assert_status(SYNCGUARD_OK, syncguard_acquire(bare, name.text, 1000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(bare, grant.lock_id, NULL, &err));
    /* It has neither drops nor a text. */
    assert_true(syncguard_telemetry_dropped(bare) == 0);
    assert_true(syncguard_telemetry_prometheus(bare, NULL, 0) == 0);
    syncguard_close(bare);
}

static void decorators_can_be_stacked(void **state)
{
    syncguard_backend *inner = decorate_recording(false);
    key name = fresh_key("stacked");
    event_filter filter = {SYNCGUARD_EVENT_ACQUIRE, name.text, NULL};
    (void)state;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = record_event;
    syncguard_backend *outer = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(inner, &options, &outer, &err));
    assert_string_equal(syncguard_capabilities_get(outer)->backend,
                        syncguard_capabilities_get(store)->backend);
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(outer, name.text, NULL, &lock, &err));
    syncguard_lock_dispose(lock);
    syncguard_close(outer);
    assert_int_equal(count_events(filter, NULL), 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_operation_is_an_event),
    cmocka_unit_test(list_and_refused_arguments_are_no_events),
    cmocka_unit_test(expired_locks_have_their_reason),
    cmocka_unit_test(raw_names_only_if_asked_for),
    cmocka_unit_test(blocked_callback_delays_nobody),
    cmocka_unit_test(errors_are_events_too),
    cmocka_unit_test(names_of_events),
    cmocka_unit_test(counters_in_prometheus_text),
    cmocka_unit_test(lost_locks_are_counted_and_logged),
    cmocka_unit_test(two_handles_have_series_of_their_own),
    cmocka_unit_test(bad_telemetry_options_are_refused),
    cmocka_unit_test(decorators_can_be_stacked),
};
const contract_group telemetry_group = {"telemetry", tests, sizeof tests / sizeof tests[0]};
