/*
 * The permissions that docs/backends/firestore.md asks for. The fake server knows which ones Google
 * documents for each request: with those of the page nothing is refused, and no request needs
 * another one. Without any single one something is refused, and the doctor finds it.
 */
#include "support.h"

#include <ctype.h>

#include <syncguard/sys/backend.h>

#define FOREIGN_ID "AAAAAAAAAAAAAAAAAAAAAA"
#define DEAD_ID "BBBBBBBBBBBBBBBBBBBBBB"
#define MOST 16

static char listed[MOST][64];
static int count;

/* The names in backquotes of that sentence; one that begins with a dot is short for an entity's. */
static void read_page(void)
{
    static char text[1 << 17];
    FILE *page = fopen(DOCUMENT, "r");
    assert_non_null(page);
    text[fread(text, 1, sizeof text - 1, page)] = '\0';
    fclose(page);
    char *at = strstr(text, "a custom role with");
    assert_non_null(at);
    char *end;
    for (end = at; *end != '\0' && !(end[0] == '.' && isspace((unsigned char)end[1])); end++)
        continue;
    *end = '\0';
    for (char *word; strsep(&at, "`") != NULL && (word = strsep(&at, "`")) != NULL; count++) {
        assert_true(count < MOST);
        snprintf(listed[count], sizeof listed[0], "%s%s",
                 word[0] == '.' ? "datastore.entities" : "", word);
    }
    assert_true(count > 3);
}

static int firestore_rights_setup(void **state)
{
    read_page();
    return start_server(state);
}

static void firestore_rights_permit(const json_t *names)
{
    json_t *settings = json_pack("{s:O}", "permissions", names);
    char *text = json_dumps(settings, 0);
    json_decref(fake_server_control(&server, "PUT", "settings", text));
    free(text);
    json_decref(settings);
}

/* Grants all listed permissions except one (-1: all of them). */
static void permit_listed(int without)
{
    json_t *names = json_array();
    for (int i = 0; i < count; i++) {
        if (i != without)
            json_array_append_new(names, json_string(listed[i]));
    }
    firestore_rights_permit(names);
    json_decref(names);
}

static int refused;

/* True: done. False: refused for lack of a permission. Anything else fails the test. */
static bool firestore_rights_allowed(syncguard_status status)
{
    if (status >= 0)
        return true;
    assert_int_equal(status, SYNCGUARD_E_AUTH_FAILED);
    assert_string_equal(err.native, "PERMISSION_DENIED");
    refused++;
    return false;
}

/* Acquires new keys, keys that were used before, and keys whose lock has expired; renews singly and
 * in batches. */
static void firestore_rights_hold(syncguard_backend *mine)
{
    static const char *const keys[] = {"new", "new", "dead"};
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    fake_server_plant(&server, "dead", "dead", DEAD_ID, test_wall_ms() - 60000);
    for (int i = 0; i < 3; i++) {
        syncguard_extend_op item = {.ttl_ms = 60000};
        syncguard_grant grant, second;
        syncguard_status status = syncguard_acquire(mine, keys[i], 30000, NULL, &grant, &err);
        if (!firestore_rights_allowed(status) || status != SYNCGUARD_OK)
            continue;
        item.lock_id = grant.lock_id;
        firestore_rights_allowed(syncguard_acquire(mine, keys[i], 30000, NULL, &second, &err));
        firestore_rights_allowed(syncguard_extend(mine, grant.lock_id, 40000, NULL, NULL, &err));
        firestore_rights_allowed(mine->ops->extend_many(mine, &item, 1, &limits, &err));
        firestore_rights_allowed(syncguard_release(mine, grant.lock_id, NULL, &err));
    }
}

/* Reads a lock that another client holds. */
static void firestore_rights_query(syncguard_backend *other)
{
    fake_server_plant(&server, "held", "held", FOREIGN_ID, test_wall_ms() + 60000);
    bool flag;
    firestore_rights_allowed(syncguard_is_locked(other, "held", NULL, &flag, &err));
    syncguard_lock_info info;
    firestore_rights_allowed(syncguard_get_by_key(other, "held", NULL, &info, &err));
    firestore_rights_allowed(syncguard_get_by_id(other, FOREIGN_ID, NULL, &info, &err));
    firestore_rights_allowed(syncguard_owns(other, FOREIGN_ID, NULL, &flag, &err));
    firestore_rights_allowed(syncguard_list(other, NULL, test_ignore_info, NULL, &err));
}

static void firestore_rights_change(syncguard_backend *other)
{
    firestore_rights_allowed(syncguard_extend(other, FOREIGN_ID, 40000, NULL, NULL, &err));
    firestore_rights_allowed(syncguard_release(other, FOREIGN_ID, NULL, &err));
}

/* Removes records of expired locks, on demand and by is_locked; the latter does not report a
 * refusal. */
static void firestore_rights_prune(syncguard_backend *mine, bool allowed)
{
    fake_server_plant(&server, "dead", "dead", DEAD_ID, test_wall_ms() - 60000);
    firestore_rights_allowed(syncguard_prune(mine, NULL, false, NULL, NULL, &err));
    fake_server_plant(&server, "dead", "dead", DEAD_ID, test_wall_ms() - 60000);
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.cleanup_in_is_locked = true;
    syncguard_backend *cleaner = fake_server_open(&server, &options);
    bool flag;
    firestore_rights_allowed(syncguard_is_locked(cleaner, "dead", NULL, &flag, &err));
    for (int i = 0; allowed && stored("locks/dead"); i++) {
        assert_true(i < 600);
        test_sleep_ms(50);
    }
    syncguard_close(cleaner);
}

static int lacking; /* findings of the doctor about permissions */

static void firestore_rights_finding_note(void *context, const syncguard_finding *finding)
{
    (void)context;
    if (strcmp(finding->topic, "permissions") == 0 && finding->severity != SYNCGUARD_FINE)
        lacking++;
}

static void firestore_rights_use_all(int without)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    fake_server_reset(&server);
    permit_listed(without);
    refused = lacking = 0;
    firestore_rights_hold(mine);
    firestore_rights_query(other);
    firestore_rights_change(other);
    firestore_rights_prune(mine, without < 0);
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(mine, NULL, firestore_rights_finding_note, NULL, &err));
    syncguard_close(other);
    syncguard_close(mine);
}

static void documented_permissions_are_enough(void **state)
{
    (void)state;
    firestore_rights_use_all(-1);
    assert_int_equal(refused, 0);
    assert_int_equal(lacking, 0);
}

/* Compares what Google requires for each request with the list of the page. */
static void requests_need_what_is_documented(void **state)
{
    (void)state;
    firestore_rights_use_all(-1);
    json_t *log = fake_server_control(&server, "GET", "log", NULL);
    bool used[MOST] = {false};
    json_t *entry;
    json_t *name;
    size_t i;
    size_t j;
    json_array_foreach(log, i, entry)
    {
        json_array_foreach(json_object_get(entry, "permissions"), j, name)
        {
            int k = 0;
            while (k < count && strcmp(listed[k], json_string_value(name)) != 0)
                k++;
            if (k == count)
                fail_msg("%s needs %s", json_string_value(json_object_get(entry, "call")),
                         json_string_value(name));
            used[k] = true;
        }
    }
    json_decref(log);
    for (int k = 0; k < count; k++) {
        if (!used[k])
            fail_msg("nothing needs %s", listed[k]);
    }
}

static void each_of_them_is_needed(void **state)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        firestore_rights_use_all(i);
        if (refused == 0)
            fail_msg("everything works without %s", listed[i]);
        if (lacking == 0)
            fail_msg("the doctor does not miss %s", listed[i]);
    }
}

/* roles/datastore.viewer has these two, and others that are not used. */
static void reading_needs_no_more_than_a_viewer_has(void **state)
{
    json_t *names = json_pack("[s,s]", "datastore.entities.get", "datastore.entities.list");
    syncguard_backend *other = fake_server_open(&server, NULL);
    (void)state;
    firestore_rights_permit(names);
    json_decref(names);
    refused = 0;
    firestore_rights_query(other);
    assert_int_equal(refused, 0);
    firestore_rights_change(other);
    assert_int_equal(refused, 2);
    syncguard_close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(documented_permissions_are_enough, reset_server),
        cmocka_unit_test_setup(requests_need_what_is_documented, reset_server),
        cmocka_unit_test_setup(each_of_them_is_needed, reset_server),
        cmocka_unit_test_setup(reading_needs_no_more_than_a_viewer_has, reset_server),
    };
    return cmocka_run_group_tests(tests, firestore_rights_setup, stop_server);
}
