/* Opening, options, capabilities, constants, names of statuses. */
#include "contract.h"

/* The suite's URL with one more query option. */
static const char *url_with(const char *query)
{
    static char url[4096];
    snprintf(url, sizeof url, "%s%c%s", contract.url, strchr(contract.url, '?') != NULL ? '&' : '?',
             query);
    return url;
}

static void refused_url(const char *url, const char *named, const char *hidden)
{
    syncguard_backend *backend = (syncguard_backend *)&err;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_open(url, NULL, &backend, &err));
    assert_int_equal(err.code, SYNCGUARD_E_INVALID_ARGUMENT);
    assert_null(backend);
    assert_string_not_equal(err.message, "");
    if (named != NULL && strstr(err.message, named) == NULL)
        fail_msg("the message does not name %s: %s", named, err.message);
    if (hidden != NULL && strstr(err.message, hidden) != NULL)
        fail_msg("the message shows a value: %s", err.message);
}

static void bad_url_options_are_named(void **state)
{
    (void)state;
    refused_url(url_with("no_such_option=s3cretvalue"), "no_such_option", "s3cretvalue");
    refused_url(url_with("timeout_ms=s3cretvalue"), "timeout_ms", "s3cretvalue");
    refused_url(url_with("timeout_ms=0"), "timeout_ms", NULL);
    refused_url(url_with("timeout_ms=-5"), "timeout_ms", NULL);
    refused_url(url_with("timeout_ms=99999999999999999999"), "timeout_ms", "9999999");
    refused_url(url_with("timeout_ms=1000&timeout_ms=2000"), "timeout_ms", NULL);
    refused_url(url_with("dispose_timeout_ms=x"), "dispose_timeout_ms", NULL);
    refused_url(url_with("cleanup=perhaps"), "cleanup", "perhaps");
}

static void tolerance_and_time_cannot_be_configured(void **state)
{
    (void)state;
    refused_url(url_with("tolerance_ms=0"), "tolerance_ms", NULL);
    refused_url(url_with("time_authority=client"), "time_authority", NULL);
}

static void unknown_schemes_are_refused(void **state)
{
    (void)state;
    refused_url("nosuchstore://user:s3cretvalue@host/", "nosuchstore", "s3cretvalue");
    refused_url("", NULL, NULL);
    refused_url("no-colon-at-all", NULL, NULL);
    refused_url("../../evil:x", NULL, NULL);
    refused_url("://", NULL, NULL);
}

static void good_url_options_are_taken(void **state)
{
    (void)state;
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK,
                  syncguard_open(url_with("timeout_ms=4000&dispose_timeout_ms=500&cleanup=true"),
                                 NULL, &backend, &err));
    syncguard_close(backend);
    syncguard_close(NULL);
}

static void refused_options(const syncguard_options *options)
{
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_open(contract.url, options, &backend, &err));
    assert_null(backend);
}

static void bad_option_structs_are_refused(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.timeout_ms = 0;
    refused_options(&options);
    options.timeout_ms = -1;
    refused_options(&options);
    syncguard_options_init(&options, sizeof options);
    options.dispose_timeout_ms = -1;
    refused_options(&options);
    syncguard_options_init(&options, sizeof options);
    options.size = 3;
    refused_options(&options);
    options.size = 0;
    refused_options(&options);
    syncguard_options_init(&options, sizeof options);
    char owner[SYNCGUARD_MAX_OWNER_BYTES + 2];
    memset(owner, 'o', sizeof owner - 1);
    owner[sizeof owner - 1] = '\0';
    options.owner = owner;
    refused_options(&options);
    options.owner = "caf\xE9";
    refused_options(&options);
    owner[SYNCGUARD_MAX_OWNER_BYTES] = '\0';
    options.owner = owner;
    syncguard_close(open_store(&options));
}

static void longer_structs_of_newer_programs_are_read(void **state)
{
    struct {
        syncguard_options known;
        char unknown[64];
    } longer;
    (void)state;
    memset(&longer, 0, sizeof longer);
    syncguard_options_init(&longer.known, sizeof longer);
    assert_int_equal(longer.known.size, sizeof longer);
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(contract.url, &longer.known, &backend, &err));
    syncguard_close(backend);
    longer.unknown[5] = 1;
    refused_options(&longer.known);
}

static void calls_are_checked(void **state)
{
    key name = fresh_key("call");
    (void)state;
    syncguard_call call = test_call(-1);
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, name.text, 1000, &call, &grant, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(store, FOREIGN_ID, &call, &err));
    syncguard_call_init(&call, sizeof call);
    call.size = 1;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, name.text, 1000, &call, &grant, &err));
    syncguard_call_init(&call, sizeof call);
    call.timeout_ms = 3000;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, name.text, 1000, &call, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, &call, &err));
}

static void init_functions_agree_with_their_macros(void **state)
{
    (void)state;
    syncguard_options options_twin;
    syncguard_options_init(&options_twin, sizeof options_twin);
    const syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    assert_true(options_twin.size == options.size);
    assert_true(options_twin.timeout_ms == 5000 && options.timeout_ms == 5000);
    assert_true(options_twin.dispose_timeout_ms == 0 && options.dispose_timeout_ms == 0);
    assert_true(!options_twin.cleanup_in_is_locked && !options.cleanup_in_is_locked);
    assert_null(options_twin.owner);
    assert_true(options_twin.log == NULL && options_twin.on_release_error == NULL);
    syncguard_call call_twin;
    syncguard_call_init(&call_twin, sizeof call_twin);
    const syncguard_call call = SYNCGUARD_CALL_INIT;
    assert_true(call_twin.size == call.size && call_twin.timeout_ms == call.timeout_ms);
    assert_null(call_twin.abort_object);
    syncguard_lock_options lock_twin;
    syncguard_lock_options_init(&lock_twin, sizeof lock_twin);
    const syncguard_lock_options lock = SYNCGUARD_LOCK_OPTIONS_INIT;
    assert_true(lock_twin.size == lock.size);
    assert_true(lock_twin.ttl_ms == 30000 && lock.ttl_ms == 30000);
    assert_true(lock_twin.max_retries == 10 && lock.max_retries == 10);
    assert_true(lock_twin.retry_delay_ms == 100 && lock.retry_delay_ms == 100);
    assert_true(lock_twin.timeout_ms == 5000 && lock.timeout_ms == 5000);
    assert_int_equal(lock_twin.backoff, SYNCGUARD_BACKOFF_EXPONENTIAL);
    assert_int_equal(lock_twin.jitter, SYNCGUARD_JITTER_EQUAL);
    assert_int_equal(lock.backoff, SYNCGUARD_BACKOFF_EXPONENTIAL);
    assert_int_equal(lock.jitter, SYNCGUARD_JITTER_EQUAL);
    assert_true(!lock_twin.auto_extend && !lock_twin.retry_unavailable);
    assert_true(lock_twin.max_hold_ms == 0 && lock.max_hold_ms == 0);
    assert_true(lock_twin.abort_object == NULL && lock_twin.on_lost == NULL);
    syncguard_telemetry_options telemetry_twin;
    syncguard_telemetry_options_init(&telemetry_twin, sizeof telemetry_twin);
    const syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    assert_true(telemetry_twin.size == telemetry.size);
    assert_true(telemetry_twin.queue_length == 1024 && telemetry.queue_length == 1024);
    assert_true(!telemetry_twin.include_raw && telemetry_twin.on_event == NULL);
}

static void capabilities_name_the_store(void **state)
{
    const syncguard_capabilities *known = able();
    size_t length = strcspn(contract.url, ":+");
    (void)state;
    assert_non_null(known);
    assert_true(known->supports_fencing);
    /* The backend's name is that of the scheme, but for rediss and postgresql. */
    assert_true(strncmp(known->backend, contract.url, length) == 0 ||
                strncmp(known->backend, contract.url, strlen(known->backend)) == 0);
    assert_in_range(known->time_authority, SYNCGUARD_TIME_SERVER, SYNCGUARD_TIME_CLIENT);
}

static void constants_of_library_and_header_agree(void **state)
{
    const syncguard_constants *constants = syncguard_constants_get();
    (void)state;
    assert_string_equal(constants->version, SYNCGUARD_VERSION_STRING);
    assert_true(constants->max_key_bytes == 512);
    assert_true(constants->max_raw_key_bytes == 4096);
    assert_true(constants->default_ttl_ms == 30000);
    assert_true(constants->time_tolerance_ms == 1000);
    assert_true(constants->default_timeout_ms == 5000);
    assert_true(constants->max_time_ms == INT64_C(9007199254740991));
    assert_true(constants->fence_max == INT64_C(900000000000000));
    assert_true(constants->fence_warn == INT64_C(90000000000000));
    assert_true(constants->redis_limit_bytes == 1000 && constants->redis_reserve_bytes == 26);
    assert_true(constants->postgres_limit_bytes == 1700 && constants->postgres_reserve_bytes == 0);
    assert_true(constants->firestore_limit_bytes == 1500 &&
                constants->firestore_reserve_bytes == 0);
}

static void statuses_have_the_names_of_the_specification(void **state)
{
    (void)state;
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_SERVICE_UNAVAILABLE),
                        "ServiceUnavailable");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_AUTH_FAILED), "AuthFailed");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_INVALID_ARGUMENT), "InvalidArgument");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_RATE_LIMITED), "RateLimited");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_NETWORK_TIMEOUT), "NetworkTimeout");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_ACQUISITION_TIMEOUT),
                        "AcquisitionTimeout");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_ABORTED), "Aborted");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_INTERNAL), "Internal");
    assert_string_equal(syncguard_status_name(SYNCGUARD_E_OUT_OF_MEMORY), "OutOfMemory");
    assert_string_equal(syncguard_status_name((syncguard_status)77), "Unknown");
    assert_non_null(syncguard_status_text((syncguard_status)-77));
}

static void errors_do_not_show_keys(void **state)
{
    key name = fresh_key("s3cretkey");
    (void)state;
    syncguard_abort *abort_object = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    syncguard_abort_trigger(abort_object);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = abort_object;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_acquire(store, name.text, 1000, &call, &grant, &err));
    assert_null(memmem(&err, sizeof err, "s3cretkey", 9));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, name.text, -1, NULL, &grant, &err));
    assert_null(memmem(&err, sizeof err, "s3cretkey", 9));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(store, "s3cretid", NULL, &err));
    assert_null(memmem(&err, sizeof err, "s3cretid", 8));
    syncguard_abort_free(abort_object);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(bad_url_options_are_named),
    cmocka_unit_test(tolerance_and_time_cannot_be_configured),
    cmocka_unit_test(unknown_schemes_are_refused),
    cmocka_unit_test(good_url_options_are_taken),
    cmocka_unit_test(bad_option_structs_are_refused),
    cmocka_unit_test(longer_structs_of_newer_programs_are_read),
    cmocka_unit_test(calls_are_checked),
    cmocka_unit_test(init_functions_agree_with_their_macros),
    cmocka_unit_test(capabilities_name_the_store),
    cmocka_unit_test(constants_of_library_and_header_agree),
    cmocka_unit_test(statuses_have_the_names_of_the_specification),
    cmocka_unit_test(errors_do_not_show_keys),
};
const contract_group options_group = {"options", tests, sizeof tests / sizeof tests[0]};
