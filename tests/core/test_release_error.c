/*
 * A release at the end of a lock fails (I-HND-03, 06, 07, 10): which callback is called, with which
 * text, and that the default handler prints nothing where it must not.
 */

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_backend.h"
#include "test_assert.h"

#define KEY "s3cret-key"

static syncguard_status release_error_refuse_release(fake_backend *p, syncguard_release_op *op,
                                                     syncguard_error *err)
{
    (void)p;
    (void)op;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "GONE", "the store is gone");
}

typedef struct told {
    int calls;
    syncguard_error error;
    char key[64];
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char source[16];
} told;

static void release_error_note_report(void *context, const syncguard_error *error, const char *key,
                                      const char *lock_id, const char *source)
{
    told *into = context;
    into->calls++;
    into->error = *error;
    snprintf(into->key, sizeof into->key, "%s", key);
    snprintf(into->lock_id, sizeof into->lock_id, "%s", lock_id);
    snprintf(into->source, sizeof into->source, "%s", source);
}

static int nothing_to_do(void *context, syncguard_lock *lock)
{
    (void)context;
    (void)lock;
    return 7;
}

static fake_backend *open_refusing(told *backend_level)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 50; /* close must not wait for the background */
    if (backend_level != NULL) {
        options.on_release_error = release_error_note_report;
        options.on_release_error_context = backend_level;
    }
    fake_backend *p = fake_backend_open(&options);
    assert_non_null(p);
    p->on_release = release_error_refuse_release;
    return p;
}

static void dispose_one(fake_backend *p, told *lock_level, char id[SYNCGUARD_LOCK_ID_SIZE])
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    if (lock_level != NULL) {
        options.on_release_error = release_error_note_report;
        options.on_release_error_context = lock_level;
    }
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, KEY, &options, &lock, NULL), SYNCGUARD_OK);
    memcpy(id, syncguard_lock_id(lock), SYNCGUARD_LOCK_ID_SIZE);
    syncguard_lock_dispose(lock);
}

static void both_levels_are_told_of_their_own(void **state)
{
    told backend_level = {0};
    fake_backend *p = open_refusing(&backend_level);
    (void)state;
    char id[SYNCGUARD_LOCK_ID_SIZE];
    dispose_one(p, NULL, id);
    assert_int_equal(backend_level.calls, 1);
    assert_int_equal(backend_level.error.code, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(backend_level.error.native, "GONE");
    assert_string_equal(backend_level.key, KEY);
    assert_string_equal(backend_level.lock_id, id);
    assert_string_equal(backend_level.source, "scope");
    assert_null(memmem(&backend_level.error, sizeof backend_level.error, KEY, strlen(KEY)));
    told lock_level = {0};
    dispose_one(p, &lock_level, id);
    assert_int_equal(lock_level.calls, 1);
    assert_int_equal(backend_level.calls, 1);
    assert_string_equal(lock_level.lock_id, id);
    int result = 0;
    assert_int_equal(syncguard_with_lock(&p->base, KEY, NULL, nothing_to_do, NULL, &result, NULL),
                     SYNCGUARD_OK);
    assert_int_equal(result, 7);
    assert_int_equal(backend_level.calls, 2);
    assert_string_equal(backend_level.source, "helper");
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.on_release_error = release_error_note_report;
    options.on_release_error_context = &lock_level;
    assert_int_equal(
        syncguard_with_lock(&p->base, KEY, &options, nothing_to_do, NULL, &result, NULL),
        SYNCGUARD_OK);
    assert_int_equal(lock_level.calls, 2);
    assert_string_equal(lock_level.source, "helper");
    assert_int_equal(backend_level.calls, 2);
    syncguard_close(&p->base);
}

static void dispose_timeout_is_reported(void **state)
{
    int64_t started = syncguard_clock_ns();
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 200;
    fake_backend *p = fake_backend_open(&options);
    p->on_release = fake_release_hangs;
    told seen = {0};
    char id[SYNCGUARD_LOCK_ID_SIZE];
    dispose_one(p, &seen, id);
    assert_in_range((syncguard_clock_ns() - started) / SYNCGUARD_NS_PER_MS, 190, 1500);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.error.code, SYNCGUARD_E_NETWORK_TIMEOUT);
    syncguard_close(&p->base);
}

/* Disposes of a lock in a child with this environment; copies what the child wrote to stderr. The
 * id of the lock goes to *id, which is shared with the child. */
static void stderr_of(const char *environment, const char *debug, told *callback, char *text,
                      size_t size, char *id)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        environment != NULL ? setenv("SYNCGUARD_ENV", environment, 1) : unsetenv("SYNCGUARD_ENV");
        debug != NULL ? setenv("SYNCGUARD_DEBUG", debug, 1) : unsetenv("SYNCGUARD_DEBUG");
        dispose_one(open_refusing(callback), NULL, id);
        fflush(NULL);
        _exit(callback == NULL || callback->calls == 1 ? 0 : 1);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t got;
    while (used + 1 < size && (got = read(ends[0], text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void default_handler_in_every_environment(void **state)
{
    static const struct {
        const char *environment;
        const char *debug;
        bool prints;
    } cases[] = {
        {NULL, NULL, true},           {"development", NULL, true}, {"production", NULL, false},
        {"production", "true", true}, {"production", "1", false},  {"production", "TRUE", false},
        {"production", "", false},    {"Production", NULL, true},
    };
    char *id = mmap(NULL, SYNCGUARD_LOCK_ID_SIZE, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(id != MAP_FAILED);
    char text[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        id[0] = '\0';
        stderr_of(cases[i].environment, cases[i].debug, NULL, text, sizeof text, id);
        assert_true(syncguard_lock_id_valid(id));
        if (cases[i].prints) {
            char *newline = strchr(text, '\n');
            assert_non_null(newline);
            assert_string_equal(newline, "\n"); /* one line */
            assert_non_null(strstr(text, "ServiceUnavailable"));
            assert_null(strstr(text, KEY));
            assert_null(strstr(text, id));
        } else {
            assert_string_equal(text, "");
        }
        told callback = {0};
        /* A callback that is set is always called, and nothing is printed then. */
        stderr_of(cases[i].environment, cases[i].debug, &callback, text, sizeof text, id);
        assert_string_equal(text, "");
    }
    munmap(id, SYNCGUARD_LOCK_ID_SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_levels_are_told_of_their_own),
        cmocka_unit_test(dispose_timeout_is_reported),
        cmocka_unit_test(default_handler_in_every_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
