/* Durations in messages: the library and the command print them in the same form. */
#include "test.h"

#include "cli/times.h"
#include "core/text.h"

static void prints(int64_t ms, const char *expected)
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
    prints(-5, "0s");
    prints(0, "0s");
    prints(1, "1ms");
    prints(250, "250ms");
    prints(999, "999ms");
    prints(1000, "1s");
    prints(1500, "1.5s");
    prints(3000, "3s");
    prints(3001, "3.1s"); /* what is left of a lease is not said to be over before it is */
    prints(9999, "10s");
    prints(12999, "12s");
    prints(185000, "3m05s");
    prints(7380000, "2h03m");
    prints(352800000, "4d02h");
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
