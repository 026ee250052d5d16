/* I-FST-11: how far this machine's clock may be off before it is logged and before operations are
 * refused. */
#include "support.h"

#include "backends/firestore/backend.h"

static void worst_of(void *context, const syncguard_finding *finding)
{
    if (strcmp(finding->topic, "clock") == 0)
        *(syncguard_severity *)context = finding->severity;
}

static void limits_of_drift(void **state)
{
    static const struct {
        int ahead_ms;
        syncguard_severity severity;
        bool logs;
        bool refused;
    } steps[] = {
        {0, SYNCGUARD_FINE, false, false},    {150, SYNCGUARD_FINE, false, false},
        {-150, SYNCGUARD_FINE, false, false}, {300, SYNCGUARD_WARN, true, false},
        {-300, SYNCGUARD_WARN, true, false},  {700, SYNCGUARD_BLOCK, true, true},
        {-700, SYNCGUARD_BLOCK, true, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        fake_server_reset(&server);
        server_is_ahead_by(steps[i].ahead_ms);
        syncguard_options options = SYNCGUARD_OPTIONS_INIT;
        options.log = log_book_write;
        log_book book = LOG_BOOK_INIT;
        options.log_context = &book;
        syncguard_backend *mine = fake_server_open(&server, &options);
        syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
        assert_status(SYNCGUARD_ABSENT, syncguard_firestore_clock(mine, &info, &err));
        syncguard_grant grant;
        if (steps[i].refused) {
            assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                          syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
            assert_string_equal(err.native, "CLOCK_DRIFT");
            assert_non_null(strstr(err.message, steps[i].ahead_ms > 0 ? "-" : "ms"));
            assert_int_equal(fake_server_calls(&server, "commit"), 0);
        } else {
            assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
            assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
            assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        }
        assert_int_equal(book.warnings, steps[i].logs ? 1 : 0);
        assert_status(SYNCGUARD_OK, syncguard_firestore_clock(mine, &info, &err));
        assert_true(llabs(info.offset_us + steps[i].ahead_ms * 1000) <= info.error_us);
        assert_true(info.error_us < 100000);
        syncguard_severity severity = SYNCGUARD_FINE;
        assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, worst_of, &severity, &err));
        assert_int_equal(severity, steps[i].severity);
        syncguard_close(mine);
    }
}

/* Checks with a clock that is certainly off by at least this many microseconds whether that is
 * logged and whether it is refused. */
static void off_by_at_least(int64_t certain_us, int sign, bool logs, bool refused)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    sg_firestore_instant at = sg_firestore_now();
    options.log = log_book_write;
    log_book book = LOG_BOOK_INIT;
    options.log_context = &book;
    sg_firestore_backend *mine = (sg_firestore_backend *)fake_server_open(&server, &options);
    sg_firestore_clock *clock = &mine->clock;
    at.span_ns = 0;
    sg_firestore_clock_sample(clock, at.wall_ns, 0, at.boot_ns, at.boot_ns);
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    assert_true(sg_firestore_clock_read(clock, &at, &info));
    at.wall_ns += sign * (certain_us + info.error_us) * 1000;
    assert_true(sg_firestore_clock_read(clock, &at, &info));
    assert_int_equal(sg_firestore_clock_certain_us(&info), certain_us);
    memset(&err, 0, sizeof err);
    assert_status(refused ? SYNCGUARD_E_SERVICE_UNAVAILABLE : SYNCGUARD_OK,
                  sg_firestore_clock_check(clock, SG_FIRESTORE_LIVENESS, &at, &err));
    assert_string_equal(err.native, refused ? "CLOCK_DRIFT" : "");
    assert_int_equal(book.warnings, logs ? 1 : 0);
    syncguard_close(&mine->base);
}

/* I-FST-11: 100 ms is fine, 200 ms is logged, 500 ms is refused; one microsecond less is not. */
static void both_sides_of_each_bound(void **state)
{
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        off_by_at_least(100000, sign, false, false);
        off_by_at_least(199999, sign, false, false);
        off_by_at_least(200000, sign, true, false);
        off_by_at_least(499999, sign, true, false);
        off_by_at_least(500000, sign, true, true);
    }
}

typedef struct clock_report {
    syncguard_severity severity;
    double certain_ms; /* by the figures that were reported, which are rounded */
} clock_report;

static void note_clock(void *context, const syncguard_finding *finding)
{
    clock_report *report = context;
    if (strcmp(finding->topic, "clock") != 0)
        return;
    double offset;
    double error;
    assert_int_equal(sscanf(finding->text, "offset %lfms, error bound %lfms", &offset, &error), 2);
    report->severity = finding->severity;
    report->certain_ms = (offset < 0 ? -offset : offset) - error;
}

/* Moves the server's clock until the drift of which doctor is certain is close to the wanted
 * figure, half a millisecond above or below a bound. */
static void doctor_near(double wanted_ms, int sign, syncguard_severity severity)
{
    clock_report report = {SYNCGUARD_FINE, 0};
    double ahead_ms = wanted_ms;
    bool close = false;
    char text[64];
    for (int i = 0; i < 300 && !close; i++) {
        fake_server_reset(&server);
        snprintf(text, sizeof text, "{\"read_time_ms\":%.3f}", sign * ahead_ms);
        json_decref(fake_server_control(&server, "PUT", "settings", text));
        syncguard_backend *mine = fake_server_open(&server, NULL);
        assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, note_clock, &report, &err));
        syncguard_close(mine);
        close = report.certain_ms > wanted_ms - 0.35 && report.certain_ms < wanted_ms + 0.35;
        ahead_ms += wanted_ms - report.certain_ms;
    }
    assert_true(close);
    assert_int_equal(report.severity, severity);
}

static void both_sides_in_doctor(void **state)
{
    (void)state;
    doctor_near(100.5, 1, SYNCGUARD_FINE);
    for (int sign = -1; sign <= 1; sign += 2) {
        doctor_near(199.5, sign, SYNCGUARD_FINE);
        doctor_near(200.5, sign, SYNCGUARD_WARN);
        doctor_near(499.5, sign, SYNCGUARD_WARN);
        doctor_near(500.5, sign, SYNCGUARD_BLOCK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(limits_of_drift, reset_server),
        cmocka_unit_test_setup(both_sides_of_each_bound, reset_server),
        cmocka_unit_test_setup(both_sides_in_doctor, reset_server),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
