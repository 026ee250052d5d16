/*
 * Reads the privileges that docs/backends/postgres.md asks for. With them a role can do everything,
 * directly and through PgBouncer. Without any single one an operation is refused, and the doctor
 * finds the missing one.
 */
#include "support.h"

#define DATABASE "rights"
#define LOCKS "syncguard_locks"
#define COUNTERS "syncguard_fence_counters"

static pg_server *server;
static pg_server via; /* the same through PgBouncer */
static PGconn *plain;

#define MOST 16

typedef struct right {
    const char *on;
    char name[16];
} right;
static right rights[MOST];
static int count;

/* Reads the paragraph of the document that begins with a word, as one line. */
static void read_paragraph(const char *word, char *out, size_t size)
{
    FILE *file = fopen(DOCUMENT, "r");
    assert_non_null(file);
    char line[512];
    size_t length = 0;
    bool inside = false;
    while (fgets(line, sizeof line, file) != NULL && !(inside && line[0] == '\n')) {
        inside = inside || strncmp(line, word, strlen(word)) == 0;
        if (!inside)
            continue;
        line[strcspn(line, "\n")] = ' ';
        length += (size_t)snprintf(out + length, size - length, "%s", line);
        assert_true(length < size);
    }
    fclose(file);
    assert_true(inside);
}

/* Adds the words in front of a place: in "`SELECT, INSERT` on the table" these are SELECT and
 * INSERT. */
static void add_rights(const char *text, const char *place, const char *on)
{
    const char *end = strstr(text, place);
    char list[128], *rest = list;
    const char *begin = end;
    assert_non_null(end);
    while (begin > text && begin[-1] != '`')
        begin--;
    snprintf(list, sizeof list, "%.*s", (int)(end - begin), begin);
    for (const char *name; (name = strtok_r(rest, ", ", &rest)) != NULL; count++) {
        assert_true(count < MOST);
        rights[count].on = on;
        snprintf(rights[count].name, sizeof rights[count].name, "%s", name);
    }
}

static void pg_rights_read(void)
{
    char text[2048];
    read_paragraph("**Permissions.**", text, sizeof text);
    add_rights(text, "` on their schema", "SCHEMA apart");
    add_rights(text, "` on the table of locks", "apart." LOCKS);
    add_rights(text, "` on the table of counters", "apart." COUNTERS);
    assert_true(count > 3);
}

static void pg_rights_permit(int without)
{
    pg_sql(plain, "REVOKE ALL ON apart." LOCKS ", apart." COUNTERS " FROM worker");
    pg_sql(plain, "REVOKE ALL ON SCHEMA apart FROM worker");
    for (int i = 0; i < count; i++) {
        if (i != without)
            pg_sql(plain, "GRANT %s ON %s TO worker", rights[i].name, rights[i].on);
    }
}

static char lacking[1024]; /* what the doctor reported about privileges */

static void pg_rights_finding_note(void *context, const syncguard_finding *finding)
{
    (void)context;
    if (strcmp(finding->topic, "permissions") == 0 && finding->severity != SYNCGUARD_FINE)
        snprintf(lacking + strlen(lacking), sizeof lacking - strlen(lacking), "%s ", finding->text);
}

static int refused;

static void pg_rights_note_status(syncguard_status status)
{
    if (status < 0) {
        assert_int_equal(status, SYNCGUARD_E_AUTH_FAILED);
        assert_string_equal(err.native, "42501");
        refused++;
    }
}

/* Each operation once, a waiter that is woken, a renewal, a takeover. */
static void pg_rights_use_all(const char *url)
{
    syncguard_backend *backend = test_open(url);
    refused = 0;
    pg_sql(plain, "DELETE FROM apart." LOCKS);
    pg_sql(plain, "INSERT INTO apart." LOCKS
                  " (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)"
                  " VALUES ('k', 'AAAAAAAAAAAAAAAAAAAAAA', 5, 1, '000000000000001', 'k')");
    syncguard_grant grant;
    pg_rights_note_status(syncguard_acquire(backend, "k", 1200, NULL, &grant, &err));
    bool flag;
    pg_rights_note_status(syncguard_is_locked(backend, "k", NULL, &flag, &err));
    syncguard_lock_info info;
    pg_rights_note_status(syncguard_get_by_key(backend, "k", NULL, &info, &err));
    pg_rights_note_status(syncguard_list(backend, NULL, test_ignore_info, NULL, &err));
    lacking[0] = '\0';
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, pg_rights_finding_note, NULL, &err));
    syncguard_lock_options waiting = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(20000);
    syncguard_lock *lock = NULL;
    if (refused == 0) {
        pg_rights_note_status(syncguard_get_by_id(backend, grant.lock_id, NULL, &info, &err));
        pg_rights_note_status(syncguard_extend(backend, grant.lock_id, 100, NULL, NULL, &err));
        waiting.auto_extend = true;
        waiting.ttl_ms = 3000;
        pg_rights_note_status(syncguard_lock_acquire(backend, "k", &waiting, &lock, &err));
        pg_rights_note_status(syncguard_lock_release(lock, NULL, &err));
        syncguard_lock_dispose(lock);
    }
    syncguard_close(backend);
}

static const char *url_of(bool pooled)
{
    return pg_url_as(pooled ? &via : server, "worker", DATABASE,
                     pooled ? "pooler=1&lock_table=apart." LOCKS "&fence_table=apart." COUNTERS
                            : "lock_table=apart." LOCKS "&fence_table=apart." COUNTERS);
}

static void pg_documented_rights_are_enough(void **state)
{
    (void)state;
    pg_rights_permit(-1);
    for (int pooled = 0; pooled < 2; pooled++) {
        pg_rights_use_all(url_of(pooled == 1));
        assert_int_equal(refused, 0);
        assert_string_equal(lacking, "");
    }
}

static void pg_each_right_is_needed(void **state)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        pg_rights_permit(i);
        for (int pooled = 0; pooled < 2; pooled++) {
            pg_rights_use_all(url_of(pooled == 1));
            if (refused == 0)
                fail_msg("not needed: %s on %s", rights[i].name, rights[i].on);
            if (strstr(lacking, rights[i].name) == NULL)
                fail_msg("the doctor does not find that %s on %s is missing: %s", rights[i].name,
                         rights[i].on, lacking);
        }
    }
}

static int pg_rights_setup(void **state)
{
    (void)state;
    pg_rights_read();
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    pg_sql(plain, "CREATE SCHEMA apart");
    pg_sql(plain, "ALTER TABLE " LOCKS " SET SCHEMA apart");
    pg_sql(plain, "ALTER TABLE " COUNTERS " SET SCHEMA apart");
    pg_sql(plain, "CREATE ROLE worker LOGIN NOSUPERUSER");
    via = *server;
    via.port = pg_bouncer_as(server, "worker", "");
    return 0;
}

static int pg_rights_teardown(void **state)
{
    (void)state;
    PQfinish(plain);
    pg_server_end(server);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pg_documented_rights_are_enough),
        cmocka_unit_test(pg_each_right_is_needed),
    };
    return cmocka_run_group_tests(tests, pg_rights_setup, pg_rights_teardown);
}
