/*
 * Against the fake server: stored documents, documents of other programs, options, duplicates of a
 * lock id, cleanup, doctor.
 */
#include "support.h"

#include <syncguard/sys/backend.h>

extern const syncguard_module syncguard_module_firestore;

#define ID_A "AAAAAAAAAAAAAAAAAAAAAA"

static const char *type_of(const json_t *document, const char *field)
{
    const json_t *value = json_object_get(json_object_get(document, "fields"), field);
    const char *type =
        value != NULL ? json_object_iter_key(json_object_iter((json_t *)value)) : NULL;
    return type != NULL ? type : "";
}

static void documents_are_the_agreed_ones(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.owner = "me@here:1";
    syncguard_backend *mine = fake_server_open(&server, &options);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "job", 30000, NULL, &grant, &err));
    json_t *lock = fake_server_document(&server, "locks/job");
    assert_int_equal(json_object_size(json_object_get(lock, "fields")), 6);
    assert_string_equal(fake_server_field(lock, "lockId"), grant.lock_id);
    assert_string_equal(fake_server_field(lock, "key"), "job");
    assert_string_equal(fake_server_field(lock, "fence"), grant.fence);
    assert_string_equal(fake_server_field(lock, "owner"), "me@here:1");
    assert_string_equal(type_of(lock, "expiresAtMs"), "integerValue");
    assert_string_equal(type_of(lock, "acquiredAtMs"), "integerValue");
    assert_int_equal(strtoll(fake_server_field(lock, "expiresAtMs"), NULL, 10),
                     grant.expires_at_ms);
    assert_int_equal(strtoll(fake_server_field(lock, "acquiredAtMs"), NULL, 10),
                     grant.expires_at_ms - 30000);
    json_t *counter = fake_server_document(&server, "fence_counters/fence:job");
    assert_int_equal(json_object_size(json_object_get(counter, "fields")), 2);
    assert_string_equal(type_of(counter, "fence"), "stringValue");
    assert_string_equal(fake_server_field(counter, "fence"), "000000000000001");
    assert_string_equal(fake_server_field(counter, "keyDebug"), "job");
    json_decref(lock);
    json_decref(counter);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    assert_false(stored("locks/job"));
    counter = fake_server_document(&server, "fence_counters/fence:job");
    assert_non_null(counter);
    json_decref(counter);
    syncguard_close(mine);
}

static void an_extend_touches_the_expiry_alone(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    fake_server_plant(&server, "k", "k", ID_A, test_wall_ms() + 20000);
    json_t *before = fake_server_document(&server, "locks/k");
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 50000, NULL, &expires, &err));
    json_t *after = fake_server_document(&server, "locks/k");
    assert_int_equal(strtoll(fake_server_field(after, "expiresAtMs"), NULL, 10), expires);
    json_object_del(json_object_get(before, "fields"), "expiresAtMs");
    json_object_del(json_object_get(after, "fields"), "expiresAtMs");
    assert_true(json_equal(json_object_get(before, "fields"), json_object_get(after, "fields")));
    json_decref(before);
    json_decref(after);
    syncguard_close(mine);
}

static void keys_that_are_no_document_ids(void **state)
{
    static const char *const keys[] = {"a/b", ".", "..", "__x__", "____", "/", "projects/x"};
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        syncguard_grant grant;
        bool locked = false;
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, keys[i], 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(other, keys[i], 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_is_locked(other, keys[i], NULL, &locked, &err));
        assert_true(locked);
        syncguard_lock_info_raw raw;
        assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(other, keys[i], NULL, &raw, &err));
        char id[SYNCGUARD_LOCK_ID_SIZE];
        memcpy(id, raw.lock_id, sizeof id);
        assert_string_equal(raw.key, keys[i]);
        assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(other, id, NULL, &raw, &err));
        assert_string_equal(raw.key, keys[i]);
        assert_status(SYNCGUARD_OK, syncguard_extend(other, raw.lock_id, 30000, NULL, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(other, raw.lock_id, NULL, &err));
    }
    /* "a/b" by SHA-256, as the shared rule requires. */
    assert_true(stored("fence_counters/fence:wUzdwDP2S53qgOpnXPKAoA"));
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(mine, "__x", 30000, NULL, &(syncguard_grant){0}, &err));
    assert_true(stored("locks/__x"));
    syncguard_close(other);
    syncguard_close(mine);
}

static void plant_raw(const char *name, const char *fields)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"%s%s\":%s}", PREFIX, name, fields);
    json_decref(fake_server_control(&server, "PUT", "documents", text));
}

static void doubles_are_read(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    int64_t expires = test_wall_ms() + 20000;
    (void)state;
    char fields[512];
    snprintf(fields, sizeof fields,
             "{\"lockId\":{\"stringValue\":\"%s\"},\"key\":{\"stringValue\":\"k\"},"
             "\"fence\":{\"stringValue\":\"000000000000005\"},"
             "\"expiresAtMs\":{\"doubleValue\":%lld},\"acquiredAtMs\":{\"doubleValue\":%lld.5}}",
             ID_A, (long long)expires, (long long)expires - 1000);
    plant_raw("locks/k", fields);
    syncguard_grant grant;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(mine, ID_A, NULL, &info, &err));
    assert_int_equal(info.expires_at_ms, expires);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
    syncguard_close(mine);
}

/* The lock can be found by its id, but not by its key. */
static void a_lock_without_a_key_can_be_kept(void **state)
{
    static const char *const keys[] = {
        "", ",\"key\":{\"stringValue\":\"\"},\"fence\":{\"stringValue\":\"000000000000005\"},"
            "\"acquiredAtMs\":{\"integerValue\":\"1\"}"};
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char fields[512];
        snprintf(fields, sizeof fields,
                 "{\"lockId\":{\"stringValue\":\"%s\"},"
                 "\"expiresAtMs\":{\"integerValue\":\"%lld\"}%s}",
                 ID_A, (long long)test_wall_ms() + 20000, keys[i]);
        plant_raw("locks/k", fields);
        assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
        assert_false(stored("locks/k"));
    }
    syncguard_close(mine);
}

static void counters_at_their_end_and_beyond(void **state)
{
    static const char *const bad[] = {
        "{\"fence\":{\"stringValue\":\"900000000000000\"}}",
        "{\"fence\":{\"stringValue\":\"999999999999999\"}}",
        "{\"fence\":{\"stringValue\":\"1000000000000000\"}}",
        "{\"fence\":{\"stringValue\":\"-00000000000001\"}}",
        "{\"fence\":{\"stringValue\":\"garbage\"}}",
        "{\"fence\":{\"stringValue\":\"\"}}",
        "{\"fence\":{\"integerValue\":\"5\"}}",
        "{}",
    };
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        plant_raw("fence_counters/fence:k", bad[i]);
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    }
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    assert_false(stored("locks/k"));
    plant_raw("fence_counters/fence:k", "{\"fence\":{\"stringValue\":\"899999999999999\"}}");
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "900000000000000");
    syncguard_close(mine);
}

/* ---- duplicates ---- */

static void the_single_live_one_counts(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = log_book_write;
    log_book book = LOG_BOOK_INIT;
    options.log_context = &book;
    syncguard_backend *mine = fake_server_open(&server, &options);
    fake_server_plant(&server, "a-dead", "a-dead", ID_A, test_wall_ms() - 60000);
    fake_server_plant(&server, "b-live", "b-live", ID_A, test_wall_ms() + 60000);
    fake_server_plant(&server, "c-dying", "c-dying", ID_A, test_wall_ms() - 1500);
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(mine, ID_A, NULL, &raw, &err));
    assert_string_equal(raw.key, "b-live");
    assert_int_equal(book.warnings, 1);
    assert_null(strstr(book.text, ID_A));
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
    assert_int_equal(book.warnings, 2);
    /* Long dead: cleaned up. Dead for less than the guard: not yet. */
    assert_false(stored("locks/a-dead"));
    assert_true(stored("locks/c-dying"));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
    assert_false(stored("locks/b-live"));
    syncguard_close(mine);
}

static void several_live_ones_are_left_alone(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = log_book_write;
    log_book book = LOG_BOOK_INIT;
    options.log_context = &book;
    syncguard_backend *mine = fake_server_open(&server, &options);
    fake_server_plant(&server, "a", "a", ID_A, test_wall_ms() + 60000);
    fake_server_plant(&server, "b", "b", ID_A, test_wall_ms() + 60000);
    fake_server_plant(&server, "c", "c", ID_A, test_wall_ms() - 60000);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, ID_A, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(mine, ID_A, NULL, &info, &err));
    assert_int_equal(book.warnings, 3);
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

static void a_single_dead_one_stays(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    fake_server_plant(&server, "a", "a", ID_A, test_wall_ms() - 60000);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, ID_A, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

static void the_owner_is_compared_after_a_query(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    char rule[1200];
    snprintf(rule, sizeof rule,
             "[{\"on\":\"runQuery\",\"do\":\"body\",\"times\":-1,\"body\":"
             "\"[{\\\"document\\\":{\\\"name\\\":\\\"" PREFIX "locks/k\\\","
             "\\\"updateTime\\\":\\\"2024-01-01T00:00:00Z\\\",\\\"fields\\\":{"
             "\\\"lockId\\\":{\\\"stringValue\\\":\\\"BBBBBBBBBBBBBBBBBBBBBB\\\"},"
             "\\\"expiresAtMs\\\":{\\\"integerValue\\\":\\\"%lld\\\"}}}}]\"}]",
             (long long)test_wall_ms() + 60000);
    fake_server_rules(&server, rule);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, ID_A, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(mine, ID_A, NULL, &info, &err));
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

/* ---- time ---- */

static void the_cached_expiry_is_checked(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant released;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "r", 100, NULL, &released, &err));
    syncguard_grant extended;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "e", 100, NULL, &extended, &err));
    syncguard_grant inside;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "i", 1000, NULL, &inside, &err));
    test_sleep_ms(1300);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, inside.lock_id, 30000, NULL, NULL, &err));
    fake_server_forget(&server);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, released.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(mine, extended.lock_id, 30000, NULL, NULL, &err));
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

/* ---- cleaning up ---- */

static void cleaning_up_spares_counters(void **state)
{
    int64_t until = test_now_ms() + 5000;
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.cleanup_in_is_locked = true;
    syncguard_backend *mine = fake_server_open(&server, &options);
    fake_server_plant(&server, "old", "old", ID_A, test_wall_ms() - 60000);
    fake_server_plant(&server, "young", "young", ID_A, test_wall_ms() - 1700);
    plant_raw("fence_counters/fence:old", "{\"fence\":{\"stringValue\":\"000000000000007\"}}");
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "young", NULL, &locked, &err));
    assert_false(locked);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "old", NULL, &locked, &err));
    assert_false(locked);
    json_t *left;
    while ((left = fake_server_document(&server, "locks/old")) != NULL && test_now_ms() < until) {
        json_decref(left);
        test_sleep_ms(20);
    }
    assert_null(left);
    left = fake_server_document(&server, "locks/young");
    assert_non_null(left);
    json_decref(left);
    left = fake_server_document(&server, "fence_counters/fence:old");
    assert_non_null(left);
    json_decref(left);
    syncguard_close(mine);
}

/* ---- list ---- */

static void listing_goes_through_all_pages(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    json_t *many = json_object();
    (void)state;
    for (int i = 0; i < 700; i++) {
        char name[128];
        char expires[32];
        snprintf(name, sizeof name, "%slocks/k%04d", PREFIX, i);
        /* Every second document is dead, and one in ten is not a lock. */
        snprintf(expires, sizeof expires, "%lld",
                 (long long)test_wall_ms() + ((i % 2) != 0 ? 60000 : -60000));
        json_object_set_new(
            many, name,
            i % 10 == 0 ? json_object()
                        : json_pack("{s:{s:s},s:{s:s},s:{s:s},s:{s:s},s:{s:s}}", "lockId",
                                    "stringValue", ID_A, "key", "stringValue", "k", "fence",
                                    "stringValue", "000000000000001", "expiresAtMs", "integerValue",
                                    expires, "acquiredAtMs", "integerValue", "1"));
    }
    char *text = json_dumps(many, 0);
    json_decref(fake_server_control(&server, "PUT", "documents", text));
    free(text);
    json_decref(many);
    fake_server_forget(&server);
    int seen = 0;
    assert_status(SYNCGUARD_OK, syncguard_list(mine, NULL, test_count_info, &seen, &err));
    assert_int_equal(seen, 350);
    assert_int_equal(fake_server_calls(&server, "runQuery"), 3);
    syncguard_close(mine);
}

/* ---- options ---- */

static void bad_options_are_named_at_open(void **state)
{
    static const struct {
        const char *url;
        const char *named;
    } urls[] = {
        {"firestore://", "project"},
        {"firestore://a b", "project"},
        {"firestore://p/a%2Fb", "database"},
        {"firestore://p?collection=", "collection"},
        {"firestore://p?collection=a/b", "collection"},
        {"firestore://p?collection=a//b", "collection"},
        {"firestore://p?collection=..", "collection"},
        {"firestore://p?collection=__x__", "collection"},
        {"firestore://p?collection=a%0Ab", "collection"},
        {"firestore://p?collection=%FF", "collection"},
        {"firestore://p?fence_collection=/x", "fence_collection"},
        {"firestore://p?fence_collection=locks", "fence_collection"},
        {"firestore://p?collection=x&fence_collection=x", "fence_collection"},
        {"firestore://p?collection=fence_counters", "fence_collection"},
        {"firestore://p?max_connections=0", "max_connections"},
        {"firestore://p?max_clock_drift_ms=x", "max_clock_drift_ms"},
        {"firestore://p?endpoint=ftp://x", "endpoint"},
        {"firestore://p?endpoint=http://example.com", "endpoint"},
        {"firestore://p?endpoint=http://127.0.0.1%40example.com", "endpoint"},
        {"firestore://p?emulator_host=a/b", "emulator_host"},
        {"firestore://p?emulator_host=emulator.example:80", "loopback"},
        {"firestore://p?emulator_host=127.example:80", "loopback"},
        {"firestore://p?emulator_host=localhost.example:80", "loopback"},
        {"firestore://p?emulator_any_host=secretword", "emulator_any_host"},
        {"firestore://p?emulator_host=[::1]:80&endpoint=https://secretword", "endpoint"},
        {"firestore://p?emulator_host=localhost&credentials=secretword", "credentials"},
        {"firestore://p?emulator_host=127.0.0.1:80&ca_file=secretword", "ca_file"},
        {"firestore://p?ca_file=secretword", "ca_file"},
        {"firestore://p?credentials=secretword", "credentials"},
        {"firestore://p?endpoint=secretword", "endpoint"},
        {"firestore://p?collection=secretword/", "collection"},
        {"firestore://p?max_connections=secretword", "max_connections"},
        {"firestore://p?timeout_ms=secretword", "timeout_ms"},
        {"firestore://p?cleanup=secretword", "cleanup"},
        {"firestore://p?ca_file=/does/not/exist", "ca_file"},
        {"firestore://p?tolerance_ms=0", "tolerance_ms"},
        {"firestore://user:secretword@p", "user info"},
    };
    (void)state;
    /* There is an emulator to fall back to, so that only the tested option can be the reason of a
     * failure. */
    setenv("FIRESTORE_EMULATOR_HOST", "", 1);
    syncguard_backend *none = NULL;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_open(urls[i].url, NULL, &none, &err));
        if (strstr(err.message, urls[i].named) == NULL)
            print_error("%s: %s\n", urls[i].url, err.message);
        assert_non_null(strstr(err.message, urls[i].named));
        assert_null(strstr(err.message, "secretword"));
        assert_null(none);
    }
    setenv("FIRESTORE_EMULATOR_HOST", "emulator.example:80", 1);
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_open("firestore://p", NULL, &none, &err));
    assert_non_null(strstr(err.message, "FIRESTORE_EMULATOR_HOST"));
    assert_status(SYNCGUARD_OK,
                  syncguard_open("firestore://p?emulator_any_host=true", NULL, &none, &err));
    syncguard_close(none);
    setenv("FIRESTORE_EMULATOR_HOST", "", 1);
}

static void collections_may_be_chosen(void **state)
{
    (void)state;
    char url[160];
    snprintf(url, sizeof url,
             "firestore://test?emulator_host=%s&collection=apps/x/locks&fence_collection=f",
             server.host);
    syncguard_backend *mine = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(url, NULL, &mine, &err));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_true(stored("apps/x/locks/k"));
    assert_true(stored("f/fence:k"));
    syncguard_close(mine);
    assert_status(SYNCGUARD_OK, syncguard_open(url, NULL, &mine, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    syncguard_close(mine);
}

/* ---- doctor ---- */

static void doctor_reports_what_is_missing(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    findings f = {SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_int_equal(f.worst, SYNCGUARD_FINE);
    assert_non_null(strstr(f.text, "0 clock:"));
    assert_non_null(strstr(f.text, "0 index:"));
    assert_non_null(strstr(f.text, "0 permissions:"));
    assert_non_null(strstr(f.text, "0 tls:"));
    assert_false(stored("locks/syncguard-doctor"));
    fake_server_rules(&server, "[{\"on\":\"runQuery\",\"times\":2,\"do\":\"status\",\"http\":400,"
                               "\"status\":\"FAILED_PRECONDITION\",\"array\":true}]");
    f = (findings){SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_non_null(strstr(f.text, "2 index:"));
    fake_server_rules(&server, "[{\"on\":\"runQuery\",\"times\":2,\"do\":\"status\",\"http\":403,"
                               "\"status\":\"PERMISSION_DENIED\",\"array\":true}]");
    f = (findings){SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_non_null(strstr(f.text, "2 permissions: documents may not be queried"));
    fake_server_rules(&server, "[{\"on\":\"commit\",\"do\":\"status\",\"http\":403,"
                               "\"status\":\"PERMISSION_DENIED\"}]");
    f = (findings){SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_non_null(strstr(f.text, "2 permissions:"));
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"status\",\"http\":403,"
                               "\"status\":\"PERMISSION_DENIED\"}]");
    f = (findings){SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_non_null(strstr(f.text, "2 permissions:"));
    syncguard_close(mine);
}

/* How many queries for a lock id were executed, not only explained. */
static int queries_by_id(void)
{
    json_t *log = fake_server_control(&server, "GET", "log", NULL);
    int count = 0;
    for (size_t i = 0; i < json_array_size(log); i++) {
        const json_t *body = json_object_get(json_array_get(log, i), "body");
        const json_t *where = json_object_get(json_object_get(body, "structuredQuery"), "where");
        if (json_object_get(where, "fieldFilter") != NULL &&
            json_object_get(body, "explainOptions") == NULL)
            count++;
    }
    json_decref(log);
    json_decref(fake_server_control(&server, "DELETE", "log", NULL));
    return count;
}

/* The Enterprise edition creates no index, and reads the whole collection instead of failing.
 * Doctor does not try such a query: it may take long, and is billed. */
static void doctor_reports_scans(void **state)
{
    static const struct {
        const char *settings, *expected;
        int queries;
    } cases[] = {
        {"{\"indexes\":[\"lockId\"]}", "0 index: locks are found by lockId with an index", 1},
        {"{\"indexes\":[]}", "1 index: queries by lockId use no index", 0},
        {"{\"indexes\":null}", "0 index: locks can be found by lockId\n", 1},
    };
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_decref(fake_server_control(&server, "PUT", "settings", cases[i].settings));
        findings f = {SYNCGUARD_FINE, ""};
        assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
        if (strstr(f.text, cases[i].expected) == NULL)
            fail_msg("%s instead of %s", f.text, cases[i].expected);
        assert_int_equal(queries_by_id(), cases[i].queries);
    }
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(documents_are_the_agreed_ones, reset_server),
        cmocka_unit_test_setup(an_extend_touches_the_expiry_alone, reset_server),
        cmocka_unit_test_setup(keys_that_are_no_document_ids, reset_server),
        cmocka_unit_test_setup(doubles_are_read, reset_server),
        cmocka_unit_test_setup(a_lock_without_a_key_can_be_kept, reset_server),
        cmocka_unit_test_setup(counters_at_their_end_and_beyond, reset_server),
        cmocka_unit_test_setup(the_single_live_one_counts, reset_server),
        cmocka_unit_test_setup(several_live_ones_are_left_alone, reset_server),
        cmocka_unit_test_setup(a_single_dead_one_stays, reset_server),
        cmocka_unit_test_setup(the_owner_is_compared_after_a_query, reset_server),
        cmocka_unit_test_setup(the_cached_expiry_is_checked, reset_server),
        cmocka_unit_test_setup(cleaning_up_spares_counters, reset_server),
        cmocka_unit_test_setup(listing_goes_through_all_pages, reset_server),
        cmocka_unit_test_setup(bad_options_are_named_at_open, reset_server),
        cmocka_unit_test_setup(collections_may_be_chosen, reset_server),
        cmocka_unit_test_setup(doctor_reports_what_is_missing, reset_server),
        cmocka_unit_test_setup(doctor_reports_scans, reset_server),
    };
    if (syncguard_module_register(&syncguard_module_firestore, NULL) != SYNCGUARD_OK)
        return 1;
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
