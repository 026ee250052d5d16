/* Findings that several stores report in the same words. */

#include "syncguard/sys/findings.h"
#include "test_assert.h"

static syncguard_finding last;
/* A copy: the finding's own text may be gone when the report has returned. */
static char last_text[400];

static void findings_note_last(void *context, const syncguard_finding *finding)
{
    (void)context;
    last = *finding;
    snprintf(last_text, sizeof last_text, "%s", finding->text);
    last.text = last_text;
    assert_int_equal(finding->why[0] == '\0', finding->severity == SYNCGUARD_FINE);
    assert_int_equal(finding->change[0] == '\0', finding->severity == SYNCGUARD_FINE);
}

static const syncguard_findings to = {findings_note_last, NULL};

static void hosts_of_this_machine(void **state)
{
    static const char *const local[] = {"",          "localhost",      "LOCALHOST",
                                        "127.0.0.1", "127.255.0.9",    "::1",
                                        "[::1]",     "/run/pg/socket", "@abstract"};
    static const char *const remote[] = {"example.org",
                                         "10.0.0.1",
                                         "::2",
                                         "0.0.0.0",
                                         "128.0.0.1",
                                         "127.example.org",
                                         "127.0.0.1.example.org",
                                         "localhost.example.org"};
    (void)state;
    assert_true(syncguard_host_is_local(NULL));
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        assert_true(syncguard_host_is_local(local[i]));
    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++)
        assert_false(syncguard_host_is_local(remote[i]));
}

static void tls_matters_between_machines(void **state)
{
    (void)state;
    syncguard_report_tls(&to, "localhost", false, false, "x");
    assert_int_equal(last.severity, SYNCGUARD_FINE);
    syncguard_report_tls(&to, "10.0.0.1", true, true, "x");
    assert_int_equal(last.severity, SYNCGUARD_FINE);
    syncguard_report_tls(&to, "10.0.0.1", true, false, "x");
    assert_int_equal(last.severity, SYNCGUARD_WARN);
    assert_non_null(strstr(last.text, "not verified"));
    syncguard_report_tls(&to, "10.0.0.1", false, false, "x");
    assert_int_equal(last.severity, SYNCGUARD_WARN);
    assert_non_null(strstr(last.text, "off"));
}

/* A difference within the error bound is no finding. */
static void clocks_may_differ_by_a_second(void **state)
{
    static const struct {
        int64_t offset_us, error_us;
        syncguard_severity severity;
    } cases[] = {
        {0, 0, SYNCGUARD_FINE},
        {999999, 0, SYNCGUARD_FINE},
        {1000000, 0, SYNCGUARD_WARN},
        {-1000000, 0, SYNCGUARD_WARN},
        {1400000, 500000, SYNCGUARD_FINE},
        {-1600000, 500000, SYNCGUARD_WARN},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        syncguard_report_clock(&to, cases[i].offset_us, cases[i].error_us);
        assert_int_equal(last.severity, cases[i].severity);
        assert_string_equal(last.topic, "clock");
        /* Durations count by the clock of the store, and list shows nothing else. */
        assert_null(strstr(last.why, "list"));
    }
}

/* The clock of a server that may be promoted: half the tolerance of expiry. */
static void clocks_of_replicas_may_differ_by_half_a_second(void **state)
{
    static const struct {
        int64_t ahead_us, error_us;
        const char *why;
    } cases[] = {
        {499999, 0, ""},      {-499999, 0, ""},           {900000, 500000, ""},
        {500000, 0, "ahead"}, {1100000, 500000, "ahead"}, {-20000000, 1000, "behind"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool fine = cases[i].why[0] == '\0';
        syncguard_report_replica_clock(&to, "db2:5432", cases[i].ahead_us, cases[i].error_us);
        assert_int_equal(last.severity, fine ? SYNCGUARD_FINE : SYNCGUARD_WARN);
        assert_string_equal(last.topic, "replica_clock");
        assert_non_null(strstr(last.text, "db2:5432"));
        assert_non_null(strstr(last.why, cases[i].why));
    }
    syncguard_report_no_replica_clock(&to, "db2:5432", "connection refused");
    assert_int_equal(last.severity, SYNCGUARD_FINE);
    assert_non_null(strstr(last.text, "refused"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_of_this_machine),
        cmocka_unit_test(tls_matters_between_machines),
        cmocka_unit_test(clocks_may_differ_by_a_second),
        cmocka_unit_test(clocks_of_replicas_may_differ_by_half_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
