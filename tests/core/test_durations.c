/* Durations in messages: the library and the command print them in the same form. */
#include "test_assert.h"

#include "cli/times.h"
#include "core/text.h"

static void durations_assert_printed(int64_t ms, const char *expected)
{
    char library[24], command[24];
    sg_format_duration(ms, library, sizeof library);
    cli_format_duration(ms, command, sizeof command);
    assert_string_equal(library, expected);
    assert_string_equal(command, expected);
}

static void test_forms(void **state)
{
    (void)state;
    durations_assert_printed(-5, "0s");
    durations_assert_printed(0, "0s");
    durations_assert_printed(1, "1ms");
    durations_assert_printed(250, "250ms");
    durations_assert_printed(999, "999ms");
    durations_assert_printed(1000, "1s");
    durations_assert_printed(1500, "1.5s");
    durations_assert_printed(3000, "3s");
    durations_assert_printed(3001, "3.1s"); /* rounded up: not shown as over before it is */
    durations_assert_printed(9999, "10s");
    durations_assert_printed(12999, "12s");
    durations_assert_printed(185000, "3m05s");
    durations_assert_printed(7380000, "2h03m");
    durations_assert_printed(352800000, "4d02h");
}

static void test_both_agree(void **state)
{
    (void)state;
    for (int64_t ms = 1; ms < INT64_C(1) << 50; ms += ms / 7 + 1) {
        char library[24], command[24];
        sg_format_duration(ms, library, sizeof library);
        cli_format_duration(ms, command, sizeof command);
        assert_string_equal(library, command);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_both_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
