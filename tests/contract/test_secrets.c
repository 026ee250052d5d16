/*
 * I-SEC-01: a marked key, its lock ids and a marked password go through every operation, good and
 * bad; then all that came out is searched: errors, log, events, metrics, findings, standard output
 * and error. Only the raw calls may show them.
 */
#include "contract.h"

#define MARK "M4rk3dK3y"
#define PASSWORD "pw-marker-contract"

/* All output, as text. Output that does not fit is not searched, and fails the test. */
static struct {
    pthread_mutex_t mutex;
    char text[1 << 20];
    size_t length;
    bool full;
} heard = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void hear_nothing_yet(void)
{
    heard.length = 0;
    heard.full = false;
}

static void hear_too_much(void)
{
    pthread_mutex_lock(&heard.mutex);
    heard.full = true;
    pthread_mutex_unlock(&heard.mutex);
}

static void heard_add_text(const char *text)
{
    size_t length = strlen(text);
    pthread_mutex_lock(&heard.mutex);
    if (heard.length + length + 1 <= sizeof heard.text) {
        memcpy(heard.text + heard.length, text, length);
        heard.length += length;
        heard.text[heard.length++] = '\n';
    } else {
        heard.full = true;
    }
    pthread_mutex_unlock(&heard.mutex);
}

/* Reads a whole file at once, so that no boundary can fall within a secret. */
static void hear_file(FILE *file)
{
    pthread_mutex_lock(&heard.mutex);
    heard.length += fread(heard.text + heard.length, 1, sizeof heard.text - heard.length, file);
    if (ferror(file) || heard.length == sizeof heard.text)
        heard.full = true;
    pthread_mutex_unlock(&heard.mutex);
}

static void hear_log(void *context, syncguard_log_level level, const char *message)
{
    (void)context, (void)level;
    heard_add_text(message);
}

static void hear_event(void *context, const syncguard_event *event)
{
    (void)context;
    heard_add_text(event->key);
    heard_add_text(event->lock_id);
    heard_add_text(event->key_hash);
    heard_add_text(event->lock_id_hash);
}

static void hear_finding(void *context, const syncguard_finding *finding)
{
    (void)context;
    heard_add_text(finding->topic);
    heard_add_text(finding->text);
    heard_add_text(finding->why);
    heard_add_text(finding->change);
}

static bool hear_lock(void *context, const syncguard_lock_info *info)
{
    (void)context;
    heard_add_text(info->key_hash);
    heard_add_text(info->lock_id_hash);
    heard_add_text(info->fence);
    return true;
}

/* Adds the error and the status that an operation leaves beside its result. */
static void heard_add_error(syncguard_status status)
{
    (void)status;
    heard_add_text(err.message);
    heard_add_text(err.native);
    heard_add_text(err.key_hash);
    memset(&err, 0, sizeof err);
}

static void heard_call_operations(syncguard_backend *backend, const char *name, const char *id,
                                  const syncguard_call *call)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 1;
    options.retry_delay_ms = 5;
    options.timeout_ms = 200;
    options.abort_object = call->abort_object;
    syncguard_grant grant;
    heard_add_error(
        syncguard_acquire(backend, name, 30000, call, &grant, &err)); /* held, or refused */
    syncguard_lock *lock = NULL;
    heard_add_error(syncguard_lock_acquire(backend, name, &options, &lock, &err));
    syncguard_lock_dispose(lock);
    bool flag;
    heard_add_error(syncguard_is_locked(backend, name, call, &flag, &err));
    syncguard_lock_info info;
    heard_add_error(syncguard_get_by_key(backend, name, call, &info, &err));
    (void)hear_lock(NULL, &info);
    heard_add_error(syncguard_get_by_id(backend, id, call, &info, &err));
    (void)hear_lock(NULL, &info);
    heard_add_error(syncguard_owns(backend, id, call, &flag, &err));
    heard_add_error(syncguard_extend(backend, id, 30000, call, NULL, &err));
    heard_add_error(syncguard_extend(backend, id, -1, call, NULL, &err));
    heard_add_error(syncguard_list(backend, call, hear_lock, NULL, &err));
    heard_add_error(syncguard_examine(backend, call, hear_finding, NULL, &err));
    heard_add_error(syncguard_release(backend, id, call, &err));
    heard_add_error(syncguard_release(backend, id, call, &err));
    heard_add_error(syncguard_extend(backend, id, 30000, call, NULL, &err));
}

static void hear_metrics(syncguard_backend *backend)
{
    static char text[1 << 16];
    if (syncguard_telemetry_prometheus(backend, text, sizeof text) >= sizeof text)
        hear_too_much();
    heard_add_text(text);
}

static syncguard_backend *open_heard(const char *url)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = hear_log;
    syncguard_backend *bare = NULL;
    heard_add_error(syncguard_open(url, &options, &bare, &err));
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.on_event = hear_event;
    syncguard_backend *decorated = NULL;
    if (bare != NULL)
        assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, &telemetry, &decorated, &err));
    return decorated;
}

/* Everything that is printed meanwhile goes to a file, and from there to the recorded output. */
typedef struct hidden {
    FILE *file;
    int streams[2];
} hidden;

static void hide_output(hidden *h)
{
    fflush(NULL);
    h->file = tmpfile();
    assert_non_null(h->file);
    for (int i = 0; i < 2; i++) {
        h->streams[i] = dup(STDOUT_FILENO + i);
        assert_true(dup2(fileno(h->file), STDOUT_FILENO + i) >= 0);
    }
}

static void show_output(hidden *h)
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        assert_true(dup2(h->streams[i], STDOUT_FILENO + i) >= 0);
        close(h->streams[i]);
    }
    rewind(h->file);
    hear_file(h->file);
    fclose(h->file);
}

static void expect_silence(const char *secret)
{
    const char *at = memmem(heard.text, heard.length, secret, strlen(secret));
    assert_false(heard.full);
    if (at != NULL)
        fail_msg("a secret was told: %.60s", at > heard.text + 20 ? at - 20 : heard.text);
}

static void keys_and_ids_are_told_nowhere(void **state)
{
    key name = fresh_key(MARK);
    (void)state;
    hear_nothing_yet();
    hidden output;
    hide_output(&output);
    syncguard_backend *backend = open_heard(contract.url);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_call brief = SYNCGUARD_CALL_INIT;
    syncguard_call aborted = SYNCGUARD_CALL_INIT;
    syncguard_abort *abort_object = NULL;
    char bad[600] = MARK "\xFF";
    syncguard_grant grant;
    if (backend != NULL &&
        syncguard_acquire(backend, name.text, 60000, NULL, &grant, &err) == SYNCGUARD_OK &&
        syncguard_abort_create(&abort_object, NULL) == SYNCGUARD_OK) {
        brief.timeout_ms = 1;
        syncguard_abort_trigger(abort_object);
        aborted.abort_object = abort_object;
        heard_call_operations(backend, name.text, grant.lock_id, &aborted);
        heard_call_operations(backend, name.text, grant.lock_id, &brief);
        heard_call_operations(backend, name.text, grant.lock_id, &call);
        heard_call_operations(backend, bad, MARK, &call);
        memset(bad + strlen(MARK), 'x', sizeof bad - strlen(MARK) - 1);
        heard_call_operations(backend, bad, MARK "/////////////", &call);
        hear_metrics(backend);
    }
    syncguard_close(backend); /* delivers what is queued */
    show_output(&output);
    assert_non_null(backend);
    assert_non_null(abort_object);
    syncguard_abort_free(abort_object);
    assert_true(heard.length > 1000);
    expect_silence(MARK);
    expect_silence(grant.lock_id);
}

/* In every part of a URL that can hold one; the server may take it, ignore it or refuse it. */
static void passwords_are_told_nowhere(void **state)
{
    const char *rest = strstr(contract.url, "://");
    const char *at = rest != NULL ? strchr(rest, '@') : NULL;
    (void)state;
    if (rest == NULL) {
        not_applicable("its URL has no place for a password");
        return;
    }
    rest += 3;
    char urls[3][4200];
    snprintf(urls[0], sizeof urls[0], "%.*slocker:" PASSWORD "@%s", (int)(rest - contract.url),
             contract.url, at != NULL ? at + 1 : rest);
    snprintf(urls[1], sizeof urls[1], "%s%cpassword=" PASSWORD, contract.url,
             strchr(contract.url, '?') != NULL ? '&' : '?');
    snprintf(urls[2], sizeof urls[2], "%.*slocker:" PASSWORD "@[bad/%s", (int)(rest - contract.url),
             contract.url, rest);
    hear_nothing_yet();
    hidden output;
    hide_output(&output);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    for (int i = 0; i < 3; i++) {
        syncguard_backend *backend = open_heard(urls[i]);
        if (backend != NULL)
            heard_call_operations(backend, fresh_key(MARK).text, FOREIGN_ID, &call);
        syncguard_close(backend);
        heard_add_error(syncguard_setup(urls[i], NULL, NULL, NULL, &err));
    }
    show_output(&output);
    assert_true(heard.length > 100);
    expect_silence(PASSWORD);
    expect_silence(MARK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(keys_and_ids_are_told_nowhere),
    cmocka_unit_test(passwords_are_told_nowhere),
};
const contract_group secrets_group = {"secrets", tests, sizeof tests / sizeof tests[0]};
