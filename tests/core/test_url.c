/* Reading URLs, and the default URL. */
#include "test_assert.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"
#include "syncguard/sys/url.h"

static syncguard_url *url_parse_valid(const char *text)
{
    syncguard_url *url = NULL;
    syncguard_error err;
    if (syncguard_url_parse(text, &url, &err) != SYNCGUARD_OK)
        fail_msg("%s: %s", text, err.message);
    return url;
}

/* Asserts that the text is refused, with `named` in the message and nothing secret. */
static void url_assert_refused(const char *text, const char *named)
{
    syncguard_url *url = (syncguard_url *)&url;
    syncguard_error err;
    assert_int_equal(syncguard_url_parse(text, &url, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_null(url);
    assert_int_equal(err.code, SYNCGUARD_E_INVALID_ARGUMENT);
    if (strstr(err.message, named) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, named);
    assert_null(strstr(err.message, "secret"));
    assert_null(strstr(err.message, "hunter"));
}

static void test_parts(void **state)
{
    syncguard_url *url =
        url_parse_valid("REDIS+Sentinel://us%40er:p%3Aw@[::1]:26379,h2:1/my%2Fname/2?a=%26");
    (void)state;
    assert_string_equal(url->scheme, "redis+sentinel");
    assert_string_equal(url->user, "us@er");
    assert_string_equal(url->password, "p:w");
    assert_string_equal(url->hosts, "[::1]:26379,h2:1");
    assert_string_equal(url->path, "/my/name/2");
    assert_int_equal(url->option_count, 1);
    assert_string_equal(syncguard_url_text(url, "a"), "&");
    syncguard_url_free(url);
    url = url_parse_valid("sqlite:/var/lib/a%23b%3F.db");
    assert_null(url->hosts);
    assert_null(url->user);
    assert_string_equal(url->path, "/var/lib/a#b?.db");
    syncguard_url_free(url);
    url = url_parse_valid("sqlite:///tmp/x@y");
    assert_string_equal(url->hosts, "");
    assert_string_equal(url->path, "/tmp/x@y");
    syncguard_url_free(url);
    url = url_parse_valid("redis://:pw@h");
    assert_string_equal(url->user, "");
    assert_string_equal(url->password, "pw");
    assert_string_equal(url->path, "");
    syncguard_url_free(url);

    /* An unescaped '@' in the password does not become part of the hosts. */
    url = url_parse_valid("redis://u:a@b@h?");
    assert_string_equal(url->password, "a@b");
    assert_string_equal(url->hosts, "h");
    assert_int_equal(url->option_count, 0);
    syncguard_url_free(url);
    url = url_parse_valid("memory:");
    assert_null(url->hosts);
    assert_string_equal(url->path, "");
    syncguard_url_free(url);
    syncguard_url_free(NULL);
}

static void test_url_refused(void **state)
{
    (void)state;
    url_assert_refused("", "scheme");
    url_assert_refused("/tmp/x", "scheme");
    url_assert_refused("1redis://h", "scheme");
    url_assert_refused("re dis://h", "scheme");
    url_assert_refused("redis", "scheme");
    url_assert_refused("redis://u:secret%@h", "%");
    url_assert_refused("redis://u:secret%zz@h", "%");
    url_assert_refused("redis://u:secret%00@h", "NUL");
    url_assert_refused("redis://u:secret@h\n", "control");
    url_assert_refused("redis://u:hunter#secret@h", "#");
    url_assert_refused("redis://u:hunter/secret@h", "@");
    url_assert_refused("redis://u:hunter?secret@h", "@");
    url_assert_refused("redis://u:hunter?a=secret@h", "@");
    url_assert_refused("memory:?a=secret&b=1&a=hunter", "option a ");
    url_assert_refused("memory:?secret%20thing", "no value");
    url_assert_refused("memory:?a=hunter&secret", "no value"); /* the rest of a password */
    url_assert_refused("memory:?a=1&&b=2", "no value");
    url_assert_refused("memory:?=secret", "name");
}

static void test_caps(void **state)
{
    char *text = malloc(SYNCGUARD_URL_MAX_BYTES + 2);
    size_t length = strlen("memory:?");
    (void)state;
    assert_non_null(text);
    memset(text, 'a', SYNCGUARD_URL_MAX_BYTES + 1);
    text[SYNCGUARD_URL_MAX_BYTES + 1] = '\0';
    memcpy(text, "sqlite:", 7);
    url_assert_refused(text, "too long");
    text[SYNCGUARD_URL_MAX_BYTES] = '\0';
    syncguard_url_free(url_parse_valid(text));
    memcpy(text, "memory:?", length);
    for (int i = 0; i < SYNCGUARD_URL_MAX_OPTIONS; i++)
        length += (size_t)snprintf(text + length, 16, "%so%d=1", i != 0 ? "&" : "", i);
    syncguard_url_free(url_parse_valid(text));
    snprintf(text + length, 16, "&more=1");
    url_assert_refused(text, "too many");
    free(text);
}

static void test_values(void **state)
{
    static const char *const words[] = {"full", "normal", NULL};
    syncguard_url *url = url_parse_valid(
        "x:?n=-12&big=99999999999999999999&no=1x&t=true&f=0&q=maybe&d=normal&e=none&empty=");
    (void)state;
    syncguard_error err;
    int64_t n = 7;
    assert_int_equal(syncguard_url_int(url, "n", -20, 0, &n, &err), SYNCGUARD_OK);
    assert_int_equal(n, -12);
    assert_int_equal(syncguard_url_int(url, "n", -10, 0, &n, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "option n "));
    assert_int_equal(syncguard_url_int(url, "big", 0, INT64_MAX, &n, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_null(strstr(err.message, "9999"));
    assert_int_equal(syncguard_url_int(url, "no", 0, 9, &n, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_url_int(url, "empty", 0, 9, &n, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_url_int(url, "absent", 0, 9, &n, &err), SYNCGUARD_OK);
    assert_int_equal(n, -12);
    bool flag = false;
    assert_int_equal(syncguard_url_bool(url, "t", &flag, &err), SYNCGUARD_OK);
    assert_true(flag);
    assert_int_equal(syncguard_url_bool(url, "absent", &flag, &err), SYNCGUARD_OK);
    assert_true(flag);
    assert_int_equal(syncguard_url_bool(url, "f", &flag, &err), SYNCGUARD_OK);
    assert_false(flag);
    assert_int_equal(syncguard_url_bool(url, "q", &flag, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    int index = 9;
    assert_int_equal(syncguard_url_choice(url, "d", words, &index, &err), SYNCGUARD_OK);
    assert_int_equal(index, 1);
    assert_int_equal(syncguard_url_choice(url, "e", words, &index, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(index, 1);
    assert_int_equal(syncguard_url_done(url, &err), SYNCGUARD_OK);
    syncguard_url_free(url);
}

static void test_numbers(void **state)
{
    (void)state;
    int64_t n = 5;
    assert_true(sg_read_int64("9223372036854775807", &n));
    assert_true(n == INT64_MAX);
    assert_true(sg_read_int64("-9223372036854775808", &n));
    assert_true(n == INT64_MIN);
    assert_true(sg_read_int64("-0", &n));
    assert_true(n == 0);
    assert_false(sg_read_int64("9223372036854775808", &n));
    assert_false(sg_read_int64("-9223372036854775809", &n));
    assert_false(sg_read_int64("", &n));
    assert_false(sg_read_int64("-", &n));
    assert_false(sg_read_int64("+1", &n));
    assert_false(sg_read_int64(" 1", &n));
    assert_false(sg_read_int64("1 ", &n));
    assert_true(n == 0);
}

/* I-TIM-04: the tolerance is not an option. */
static void test_unknown(void **state)
{
    syncguard_url *url =
        url_parse_valid("x:?timeout_ms=10&dispose_timeout_ms=20&cleanup=1&tolerance_ms=0");
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_error err;
    assert_int_equal(syncguard_url_common(url, &options, &err), SYNCGUARD_OK);
    assert_int_equal(options.timeout_ms, 10);
    assert_int_equal(options.dispose_timeout_ms, 20);
    assert_true(options.cleanup_in_is_locked);
    assert_int_equal(syncguard_url_done(url, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "tolerance_ms"));
    syncguard_url_free(url);
    url = url_parse_valid("x:?timeout_ms=0");
    assert_int_equal(syncguard_url_common(url, &options, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "timeout_ms"));
    syncguard_url_free(url);
}

/* The user's file. If it cannot be used, no other store is taken instead. */
static void test_configured(char *buffer, size_t size)
{
    char folder[] = "/tmp/syncguard-url-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char below[64];
    snprintf(below, sizeof below, "%s/syncguard", folder);
    char path[80];
    snprintf(path, sizeof path, "%s/url", below);
    char from[96];
    snprintf(from, sizeof from, "@%s", path);
    assert_int_equal(mkdir(below, 0700), 0);
    setenv("XDG_CONFIG_HOME", folder, 1);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("# the store\n\n\t memory:?timeout_ms=7 \nnot this\n", file);
    fclose(file);
    syncguard_error err;
    assert_int_equal(syncguard_default_url(buffer, size, &err), SYNCGUARD_OK);
    assert_string_equal(buffer, "memory:?timeout_ms=7");
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(syncguard_default_url(buffer, size, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    setenv("SYNCGUARD_URL", from, 1);
    assert_int_equal(syncguard_default_url(buffer, size, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    setenv("SYNCGUARD_URL", "sqlite:/x", 1); /* wins */
    assert_int_equal(syncguard_default_url(buffer, size, &err), SYNCGUARD_OK);
    assert_string_equal(buffer, "sqlite:/x");
    unsetenv("SYNCGUARD_URL");
    unlink(path);
    rmdir(below);
    rmdir(folder);
}

static void test_default(void **state)
{
    (void)state;
    setenv("SYNCGUARD_URL", "memory:?timeout_ms=3", 1);
    char buffer[256];
    syncguard_error err;
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
    assert_string_equal(buffer, "memory:?timeout_ms=3");
    assert_int_equal(syncguard_default_url(buffer, 21, &err), SYNCGUARD_OK);
    assert_int_equal(syncguard_default_url(buffer, 20, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_string_equal(buffer, "");
    assert_int_equal(syncguard_default_url(NULL, 0, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    setenv("SYNCGUARD_URL", "", 1);
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    setenv("SYNCGUARD_URL", "@/no/such/file", 1);
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    unsetenv("SYNCGUARD_URL");
    test_configured(buffer, sizeof buffer);
    setenv("XDG_CONFIG_HOME", "/no/such/folder", 1);
    if (geteuid() == 0) {
        assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
        assert_string_equal(buffer, "sqlite:/var/lib/syncguard/locks.db");
        /* The rest concerns ordinary users: become one that owns nothing. */
        assert_int_equal(seteuid(65534), 0);
    }
    setenv("HOME", "/people/me & %you?", 1);
    unsetenv("XDG_STATE_HOME");
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
    syncguard_url *url = url_parse_valid(buffer);
    assert_string_equal(url->path, "/people/me & %you?/.local/state/syncguard/locks.db");
    syncguard_url_free(url);
    setenv("XDG_STATE_HOME", "/s#t\n@te", 1);
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
    url = url_parse_valid(buffer);
    assert_string_equal(url->path, "/s#t\n@te/syncguard/locks.db");
    syncguard_url_free(url);
    setenv("XDG_STATE_HOME", "///state", 1); /* two slashes would begin a host */
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
    assert_string_equal(buffer, "sqlite:/state/syncguard/locks.db");
    setenv("XDG_STATE_HOME", "//", 1);
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
    assert_string_equal(buffer, "sqlite:/syncguard/locks.db");
    setenv("XDG_STATE_HOME", "relative", 1);
    setenv("HOME", "/", 1); /* as in many containers */
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err), SYNCGUARD_OK);
    assert_string_equal(buffer, "sqlite:/.local/state/syncguard/locks.db");
    unsetenv("HOME");
    assert_int_equal(syncguard_default_url(buffer, sizeof buffer, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    if (getuid() == 0)
        assert_int_equal(seteuid(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_url_refused),
        cmocka_unit_test(test_caps),    cmocka_unit_test(test_values),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
