/*
 * What is stored and how it is interpreted: rows of another boot, planted garbage,
 * counters at their limits, attempts that must write nothing, batches, listings.
 */
#include "support.h"

#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "syncguard/diagnostics.h"

static syncguard_grant sqlite_data_acquire(syncguard_backend *backend, const char *key,
                                           int64_t ttl_ms)
{
    syncguard_grant grant;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, key, ttl_ms, NULL, &grant, &err));
    return grant;
}

static syncguard_limits sqlite_data_limits(void)
{
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 5000), NULL};
    return limits;
}

static void sqlite_stored_rows_are_as_agreed(void **state)
{
    const test_dir *dir = *state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    own.path = dir->file;
    options.owner = "somebody@here";
    assert_status(SYNCGUARD_OK, syncguard_sqlite_open(&own, &options, &backend, &err));
    syncguard_grant grant = sqlite_data_acquire(backend, "caf\xc3\xa9", 30000);
    char text[256];
    sql(dir->file,
        "SELECT key || '|' || user_key || '|' || fence || '|' || owner FROM syncguard_locks", text,
        sizeof text);
    assert_string_equal(text, "caf\xc3\xa9|caf\xc3\xa9|000000000000001|somebody@here");
    sql(dir->file,
        "SELECT lock_id FROM syncguard_locks WHERE expires_at_ms - acquired_at_ms = 30000", text,
        sizeof text);
    assert_string_equal(text, grant.lock_id);
    sql(dir->file, "SELECT fence_key || '|' || fence FROM syncguard_fence_counters", text,
        sizeof text);
    assert_string_equal(text, "fence:caf\xc3\xa9|1");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    sql(dir->file,
        "SELECT (SELECT count(*) FROM syncguard_locks) || '|' || fence"
        " FROM syncguard_fence_counters",
        text, sizeof text);
    assert_string_equal(text, "0|1");
    syncguard_close(backend);
}

static void a_lock_of_another_boot_is_dead(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    bool locked = true;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant grant = sqlite_data_acquire(backend, "k", 3600000);
    sql(dir->file, "UPDATE syncguard_locks SET boot_id = 'earlier'", NULL, 0);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &locked, &err));
    assert_false(locked);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(backend, "k", NULL, &info, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(backend, grant.lock_id, 1000, NULL, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_grant next = sqlite_data_acquire(backend, "k", 1000);
    assert_string_equal(next.fence, "000000000000002");
    syncguard_close(backend);
}

/* Sets the counter, tries, and expects Internal with everything as it was. */
static void refuse_counter(const test_dir *dir, syncguard_backend *backend, const char *value)
{
    char statement[200];
    char before[128];
    snprintf(statement, sizeof statement, "UPDATE syncguard_fence_counters SET fence = %s", value);
    sql(dir->file, statement, NULL, 0);
    sql(dir->file, "SELECT typeof(fence) || fence FROM syncguard_fence_counters", before,
        sizeof before);
    syncguard_grant grant;
    syncguard_error err;
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
    char after[128];
    sql(dir->file, "SELECT typeof(fence) || fence FROM syncguard_fence_counters", after,
        sizeof after);
    assert_string_equal(before, after);
    sql(dir->file, "SELECT count(*) FROM syncguard_locks", after, sizeof after);
    assert_string_equal(after, "0");
}

static void counters_at_their_limits(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant grant = sqlite_data_acquire(backend, "k", 1000);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    refuse_counter(dir, backend, "-1");
    refuse_counter(dir, backend, "'garbage'");
    refuse_counter(dir, backend, "1.5");
    refuse_counter(dir, backend, "x'31'");
    refuse_counter(dir, backend, "1000000000000000");
    refuse_counter(dir, backend, "900000000000000");
    sql(dir->file, "UPDATE syncguard_fence_counters SET fence = 899999999999999", NULL, 0);
    grant = sqlite_data_acquire(backend, "k", 1000);
    assert_string_equal(grant.fence, "900000000000000");
    syncguard_close(backend);
}

/* Whether the lock is live is unknown, so operations fail and change nothing. */
static void an_unreadable_expiry_is_internal_everywhere(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    syncguard_lock_info info;
    bool locked = false;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant held = sqlite_data_acquire(backend, "k", 30000);
    static const char *const damages[] = {
        "UPDATE syncguard_locks SET boot_expires_ms = 'soon'",
        "UPDATE syncguard_locks SET boot_expires_ms = 1.5",
        "UPDATE syncguard_locks SET boot_expires_ms = 9007199254740992",
        "UPDATE syncguard_locks SET boot_expires_ms = 1, boot_set_ms = x'00'",
        "UPDATE syncguard_locks SET boot_set_ms = 1, boot_id = x'00'",
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        char before[256];
        static const char whole[] = "SELECT quote(lock_id) || quote(fence) || quote(boot_id) ||"
                                    " quote(boot_expires_ms) FROM syncguard_locks";
        sql(dir->file, damages[i], NULL, 0);
        sql(dir->file, whole, before, sizeof before);
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
        assert_non_null(strstr(err.message, "the stored record cannot be read"));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(backend, "k", NULL, &locked, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(backend, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_extend(backend, held.lock_id, 1000, NULL, NULL, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_release(backend, held.lock_id, NULL, &err));
        char after[256];
        sql(dir->file, whole, after, sizeof after);
        assert_string_equal(before, after);
    }
    syncguard_close(backend);
}

static void sqlite_data_line_count(void *context, syncguard_log_level level, const char *message)
{
    (void)level;
    if (strstr(message, "cannot be read") != NULL)
        ++*(int *)context;
}

/* The lock is live or dead by its expiry, whatever other field is damaged. Its holder can renew and
 * release it. */
static void a_damaged_lock_is_still_held(void **state)
{
    const test_dir *dir = *state;
    static const char *const damages[] = {
        "fence = '0000000000000001'", /* 16 digits */
        "fence = '-00000000000001'",
        "fence = x'00'",
        "fence = ''",
        "fence = 'f', owner = x'00', acquired_at_ms = 'then'",
        "expires_at_ms = 'later'",
        "fence = 'f', key = 'k'",
    };
    int lines = 0;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    own.path = dir->file;
    options.log = sqlite_data_line_count;
    options.log_context = &lines;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_sqlite_open(&own, &options, &backend, &err));
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        char statement[160];
        syncguard_grant grant;
        syncguard_grant held = sqlite_data_acquire(backend, "k", 30000);
        snprintf(statement, sizeof statement, "UPDATE syncguard_locks SET %s", damages[i]);
        sql(dir->file, statement, NULL, 0);
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
        bool locked = false;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &locked, &err));
        assert_true(locked);
        syncguard_lock_info info;
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(backend, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_get_by_id(backend, held.lock_id, NULL, &info, &err));
        lines = 0;
        int listed = 0;
        assert_status(SYNCGUARD_OK, syncguard_list(backend, NULL, test_count_info, &listed, &err));
        assert_int_equal(listed, 0);
        assert_int_equal(lines, 1);
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(backend, held.lock_id, 1000, NULL, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(backend, held.lock_id, NULL, &err));
        /* Once it is dead, another acquire gets the key. */
        (void)sqlite_data_acquire(backend, "k", 30000);
        sql(dir->file, statement, NULL, 0);
        sql(dir->file, "UPDATE syncguard_locks SET boot_expires_ms = 1", NULL, 0);
        held = sqlite_data_acquire(backend, "k", 1000);
        assert_status(SYNCGUARD_OK, syncguard_release(backend, held.lock_id, NULL, &err));
    }
    /* A damaged id matches no lock. A damaged key does not keep the holder from its lock. */
    syncguard_grant held = sqlite_data_acquire(backend, "k", 30000);
    sql(dir->file, "UPDATE syncguard_locks SET key = x'00'", NULL, 0);
    assert_status(SYNCGUARD_OK, syncguard_extend(backend, held.lock_id, 1000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, held.lock_id, NULL, &err));
    (void)sqlite_data_acquire(backend, "k", 30000);
    sql(dir->file, "UPDATE syncguard_locks SET lock_id = 'much too long for the id of a lock'",
        NULL, 0);
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 1000, NULL, &held, &err));
    syncguard_close(backend);
}

static void reads_and_refusals_write_nothing(void **state)
{
    const test_dir *dir = *state;
    char wal[PATH_BYTES];
    char wake[PATH_BYTES];
    syncguard_error err;
    syncguard_grant grant;
    syncguard_lock_info info;
    bool locked = false;
    syncguard_backend *backend = open_file(dir->file);
    (void)sqlite_data_acquire(backend, "k", 30000);
    syncguard_grant gone = sqlite_data_acquire(backend, "gone", 1000);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, gone.lock_id, NULL, &err));
    uint64_t file_before = file_sum(dir->file);
    uint64_t wal_before = file_sum(beside(dir, "locks.db-wal", wal));
    uint64_t wake_before = file_sum(beside(dir, "locks.db-wake", wake));
    for (int i = 0; i < 100; i++) {
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &locked, &err));
        assert_true(locked);
        assert_status(SYNCGUARD_OK, syncguard_get_by_key(backend, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, gone.lock_id, NULL, &err));
        assert_status(SYNCGUARD_ABSENT,
                      syncguard_extend(backend, gone.lock_id, 1000, NULL, NULL, &err));
    }
    assert_true(file_before == file_sum(dir->file));
    assert_true(wal_before == file_sum(wal));
    assert_true(wake_before == file_sum(wake));
    syncguard_close(backend);
}

static void the_same_request_again_is_the_grant(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_acquire_op op = {.key = "k",
                               .key_length = 1,
                               .lock_id = "AAAAAAAAAAAAAAAAAAAAAA",
                               .ttl_ms = 30000,
                               .owner = "",
                               .limits = sqlite_data_limits()};
    assert_status(SYNCGUARD_OK, backend->ops->acquire(backend, &op, &err));
    assert_int_equal(op.fence, 1);
    int64_t expires = op.expires_at_ms;
    op.fence = 0;
    op.expires_at_ms = 0;
    assert_status(SYNCGUARD_OK, backend->ops->acquire(backend, &op, &err));
    assert_int_equal(op.fence, 1);
    assert_true(op.expires_at_ms == expires);
    op.lock_id = "BBBBBBBBBBBBBBBBBBBBBB";
    assert_status(SYNCGUARD_LOCKED, backend->ops->acquire(backend, &op, &err));
    assert_in_range(op.remaining_ms, 25000, 31000);

    /* An undo is final at once, whether the lock exists or not. */
    syncguard_limits limits = sqlite_data_limits();
    for (int i = 0; i < 2; i++)
        assert_status(SYNCGUARD_OK, backend->ops->undo(backend, "k", 1, "AAAAAAAAAAAAAAAAAAAAAA", 0,
                                                       &limits, &err));
    assert_status(SYNCGUARD_OK, backend->ops->acquire(backend, &op, &err));
    assert_int_equal(op.fence, 2);
    syncguard_close(backend);
}

static const char *sqlite_data_rows_text(const test_dir *dir)
{
    static char text[64];
    sql(dir->file, "SELECT count(*) FROM syncguard_locks", text, sizeof text);
    return text;
}

/* I-ISL-04: a lock that has been dead for less than 2000 ms is not removed. On a slow machine it
 * may have become old enough; then the next one is younger. */
static syncguard_grant young_lock_that_stays(const test_dir *dir, syncguard_backend *backend)
{
    syncguard_status status = SYNCGUARD_OK;
    syncguard_grant grant = {.lock_id = ""};
    syncguard_error err;
    for (int dead_ms = 1800; dead_ms > 1100 && status == SYNCGUARD_OK; dead_ms -= 50) {
        int64_t began = test_now_us();
        grant = sqlite_data_acquire(backend, "k", 30000);
        char text[128];
        snprintf(text, sizeof text,
                 "UPDATE syncguard_locks SET boot_expires_ms = boot_expires_ms - %d",
                 dead_ms + 30000);
        sql(dir->file, text, NULL, 0);
        syncguard_cleanup_op op = {.key = "k",
                                   .key_length = 1,
                                   .lock_id = grant.lock_id,
                                   .expires_at_ms = grant.expires_at_ms,
                                   .limits = sqlite_data_limits()};
        status = backend->ops->cleanup(backend, &op, &err);
        if (status == SYNCGUARD_OK)
            assert_true(dead_ms + (test_now_us() - began) / 1000 + 5 >= 2000);
    }
    assert_status(SYNCGUARD_ABSENT, status);
    assert_string_equal(sqlite_data_rows_text(dir), "1");
    return grant;
}

static void cleanup_removes_only_what_it_saw(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant grant = young_lock_that_stays(dir, backend);
    syncguard_cleanup_op op = {.key = "k",
                               .key_length = 1,
                               .lock_id = grant.lock_id,
                               .expires_at_ms = grant.expires_at_ms + 1,
                               .limits = sqlite_data_limits()};
    sql(dir->file, "UPDATE syncguard_locks SET boot_expires_ms = boot_expires_ms - 1000", NULL, 0);
    assert_status(SYNCGUARD_ABSENT, backend->ops->cleanup(backend, &op, &err));
    assert_string_equal(sqlite_data_rows_text(dir), "1");
    op.expires_at_ms--;
    op.lock_id = "BBBBBBBBBBBBBBBBBBBBBB";
    assert_status(SYNCGUARD_ABSENT, backend->ops->cleanup(backend, &op, &err));
    assert_string_equal(sqlite_data_rows_text(dir), "1");
    op.lock_id = grant.lock_id;
    assert_status(SYNCGUARD_OK, backend->ops->cleanup(backend, &op, &err));
    char text[64];
    sql(dir->file,
        "SELECT (SELECT count(*) FROM syncguard_locks) || (SELECT count(*) FROM"
        " syncguard_fence_counters)",
        text, sizeof text);
    assert_string_equal(text, "01");
    syncguard_close(backend);
}

#define MANY SYNCGUARD_BATCH_MAX
#define CELLS 4096 /* of the -wake file */

static void many_renewals_in_one_transaction(void **state)
{
    const test_dir *dir = *state;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_extend_op *items = calloc(MANY, sizeof *items);
    syncguard_grant *grants = calloc(MANY, sizeof *grants);
    assert_non_null(items);
    assert_non_null(grants);
    for (int i = 0; i < MANY; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%d", i);
        grants[i] = sqlite_data_acquire(backend, key, 30000);
        items[i].lock_id = grants[i].lock_id;
        items[i].ttl_ms = 90000;
    }
    syncguard_error err;
    for (int i = 0; i < MANY; i += 100)
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grants[i].lock_id, NULL, &err));
    syncguard_limits limits = sqlite_data_limits();
    assert_status(SYNCGUARD_OK, backend->ops->extend_many(backend, items, MANY, &limits, &err));
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(items[i].status, i % 100 == 0 ? SYNCGUARD_ABSENT : SYNCGUARD_OK);
        if (i % 100 == 0)
            assert_int_equal(items[i].reason, SYNCGUARD_REASON_NOT_FOUND);
        else
            assert_true(items[i].expires_at_ms > grants[i].expires_at_ms + 50000);
    }
    free(items);
    free(grants);
    syncguard_close(backend);
}

/* How many cells of the -wake file differ from before[], which is then updated. */
static int changed_cells(const test_dir *dir, uint64_t before[CELLS])
{
    static uint64_t now[CELLS];
    char path[600];
    snprintf(path, sizeof path, "%s-wake", dir->file);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(now, sizeof now[0], CELLS, file), CELLS);
    fclose(file);
    int changed = 0;
    for (int i = 0; i < CELLS; i++)
        changed += now[i] != before[i];
    memcpy(before, now, sizeof now);
    return changed;
}

/* Waiters in other processes are notified of an earlier end. A renewal notifies no waiter, and
 * costs no write. */
static void only_an_earlier_end_is_published(void **state)
{
    static uint64_t cells[CELLS];
    const test_dir *dir = *state;
    static const int64_t ttls[] = {30000, 90000, 60000, 60000};
    syncguard_error err;
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant one = sqlite_data_acquire(backend, "a", 30000),
                    other = sqlite_data_acquire(backend, "b", 30000);
    syncguard_limits limits = sqlite_data_limits();
    (void)changed_cells(dir, cells);
    test_sleep_ms(5);
    for (int i = 0; i < 4; i++) {
        syncguard_extend_op items[2] = {{.lock_id = one.lock_id, .ttl_ms = ttls[i]},
                                        {.lock_id = other.lock_id, .ttl_ms = 30000 + i * 1000}};
        bool earlier = i > 0 && ttls[i] < ttls[i - 1];
        assert_status(SYNCGUARD_OK, backend->ops->extend_many(backend, items, 2, &limits, &err));
        assert_int_equal(changed_cells(dir, cells), earlier ? 1 : 0);
        test_sleep_ms(5);
    }
    for (int i = 0; i < 4; i++) {
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(backend, other.lock_id, ttls[i], NULL, NULL, &err));
        assert_int_equal(changed_cells(dir, cells), i % 2 == 0 ? 1 : 0);
        test_sleep_ms(5);
    }
    syncguard_close(backend);
}

/* Only the damaged lock is left undecided. */
static void a_damaged_record_does_not_stop_other_renewals(void **state)
{
    const test_dir *dir = *state;
    static const char *const keys[] = {"a", "b", "c"};
    syncguard_error err;
    syncguard_grant grants[3];
    syncguard_extend_op items[3] = {{.ttl_ms = 90000}, {.ttl_ms = 90000}, {.ttl_ms = 90000}};
    syncguard_backend *backend = open_file(dir->file);
    for (int i = 0; i < 3; i++) {
        grants[i] = sqlite_data_acquire(backend, keys[i], 30000);
        items[i].lock_id = grants[i].lock_id;
    }
    sql(dir->file, "UPDATE syncguard_locks SET boot_expires_ms = 'soon' WHERE key = 'b'", NULL, 0);
    syncguard_limits limits = sqlite_data_limits();
    assert_status(SYNCGUARD_OK, backend->ops->extend_many(backend, items, 3, &limits, &err));
    assert_int_equal(items[0].status, SYNCGUARD_OK);
    assert_int_equal(items[1].status, SYNCGUARD_E_INTERNAL);
    assert_int_equal(items[2].status, SYNCGUARD_OK);
    assert_true(items[2].expires_at_ms > grants[2].expires_at_ms + 50000);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(backend, "c", NULL, &info, &err));
    assert_int_equal(info.expires_at_ms, items[2].expires_at_ms);
    syncguard_close(backend);
}

typedef struct counted {
    syncguard_backend *backend;
    int rows;
    int stop_after;
    char last[SYNCGUARD_KEY_SIZE];
} counted;

/* Uses the handle while the listing runs, which must not hold the gate or a transaction. */
static bool count_row(void *context, const syncguard_record *record)
{
    counted *self = context;
    self->rows++;
    assert_true(strcmp(self->last, record->key) < 0);
    memcpy(self->last, record->key, sizeof self->last);
    syncguard_error err;
    syncguard_grant grant;
    if (self->rows == 5) {
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(self->backend, "a-first", 1000, NULL, &grant, &err));
    }
    return self->rows != self->stop_after;
}

static void sqlite_list_leaves_dead_locks_out(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    counted self = {.backend = open_file(dir->file)};
    for (int i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%d", i);
        (void)sqlite_data_acquire(self.backend, key, 30000);
    }
    sql(dir->file, "UPDATE syncguard_locks SET boot_id = 'earlier' WHERE key LIKE 'key-1%'", NULL,
        0);
    syncguard_limits limits = sqlite_data_limits();
    assert_status(SYNCGUARD_OK,
                  self.backend->ops->list(self.backend, &limits, count_row, &self, &err));
    assert_int_equal(self.rows, 300 - 111);
    counted early = {.backend = self.backend, .stop_after = 3};
    assert_status(SYNCGUARD_OK,
                  self.backend->ops->list(self.backend, &limits, count_row, &early, &err));
    assert_int_equal(early.rows, 3);
    syncguard_close(self.backend);
}

typedef struct findings {
    int fine, warn, block;
    char topics[256];
} findings;

static void sqlite_data_finding_note(void *context, const syncguard_finding *finding)
{
    findings *self = context;
    assert_non_null(finding->text);
    *(finding->severity == SYNCGUARD_FINE   ? &self->fine
      : finding->severity == SYNCGUARD_WARN ? &self->warn
                                            : &self->block) += 1;
    if (finding->severity != SYNCGUARD_FINE)
        snprintf(self->topics + strlen(self->topics), sizeof self->topics - strlen(self->topics),
                 "%s ", finding->topic);
}

static void findings_for_doctor(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    findings good = {0};
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant grant = sqlite_data_acquire(backend, "k", 30000);
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, sqlite_data_finding_note, &good, &err));
    assert_int_equal(good.warn + good.block, 0);
    assert_true(good.fine >= 4);
    char command[PATH_BYTES + 32];
    snprintf(command, sizeof command, "chmod 0666 '%s'", dir->file);
    assert_int_equal(system(command), 0);
    findings bad = {0};
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, sqlite_data_finding_note, &bad, &err));
    assert_string_equal(bad.topics, "mode ");
    snprintf(command, sizeof command, "chmod 0600 '%s'", dir->file);
    assert_int_equal(system(command), 0);
    sql(dir->file, "UPDATE syncguard_locks SET fence = '-1'", NULL, 0);
    findings damaged = {0};
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, sqlite_data_finding_note, &damaged, &err));
    assert_string_equal(damaged.topics, "records ");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

static void long_keys_and_two_handles(void **state)
{
    const test_dir *dir = *state;
    char key[SYNCGUARD_KEY_SIZE];
    syncguard_error err;
    syncguard_grant grant;
    syncguard_lock_info_raw info;
    syncguard_backend *one = open_file(dir->file);
    syncguard_backend *two = open_file(dir->file);
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    for (int round = 1; round <= 3; round++) {
        grant = sqlite_data_acquire(one, key, 30000);
        assert_int_equal(strtol(grant.fence, NULL, 10), round);
        syncguard_grant other;
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(two, key, 1000, NULL, &other, &err));
        assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(two, grant.lock_id, NULL, &info, &err));
        assert_string_equal(info.key, key);
        assert_status(SYNCGUARD_OK, syncguard_release(two, grant.lock_id, NULL, &err));
    }
    syncguard_close(two);
    /* Closing one handle must not have dropped the other's locks on the file. */
    char line[64];
    grant = sqlite_data_acquire(one, "still", 30000);
    assert_int_equal(run_worker(line, sizeof line, "try", dir->url, "still", NULL), 1);
    syncguard_close(one);
}

/* Set: the next sync fails, once another thread waits for the key that was granted before it. */
static atomic_bool sync_fails;
static atomic_bool somebody_waits;

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);

int __wrap_fdatasync(int fd)
{
    if (!atomic_exchange(&sync_fails, false))
        return __real_fdatasync(fd);
    for (int i = 0; i < 10000 && !atomic_load(&somebody_waits); i++)
        test_sleep_ms(1);
    errno = EIO;
    return -1;
}

static void sqlite_data_on_wait(void *context, int attempts, int64_t waited_ms,
                                int64_t remaining_ms)
{
    (void)context;
    (void)attempts;
    (void)waited_ms;
    (void)remaining_ms;
    atomic_store(&somebody_waits, true);
}

static void *sqlite_data_waiter_run(void *argument)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    while (atomic_load(&sync_fails)) /* until the grant waits for its sync */
        test_sleep_ms(1);
    options.retry_delay_ms = 60000;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.timeout_ms = 60000;
    options.on_wait = sqlite_data_on_wait;
    syncguard_lock *lock = NULL;
    if (syncguard_lock_acquire(argument, "k", &options, &lock, NULL) != SYNCGUARD_OK)
        return NULL;
    syncguard_lock_dispose(lock);
    return argument;
}

/* The caller got a failure, so only the acquire itself can report that the lock has ended. */
static void a_grant_that_is_taken_back_wakes_a_waiter(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    syncguard_backend *backend = open_file(dir->file);
    atomic_store(&sync_fails, true);
    pthread_t waiter = test_start_thread(sqlite_data_waiter_run, backend);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "k", 600000, NULL, &grant, &err));
    int64_t begin = test_now_us();
    void *got = NULL;
    assert_int_equal(pthread_join(waiter, &got), 0);
    assert_ptr_equal(got, backend);
    assert_true(test_now_us() - begin < 20000000);
    syncguard_close(backend);
}

static int checkpoints;
static char wake_file[PATH_BYTES];
static uint64_t published; /* the checksum of the wake file during a checkpoint */

int __real_sqlite3_wal_checkpoint_v2(sqlite3 *db, const char *name, int mode, int *frames,
                                     int *copied);
int __wrap_sqlite3_wal_checkpoint_v2(sqlite3 *db, const char *name, int mode, int *frames,
                                     int *copied);

int __wrap_sqlite3_wal_checkpoint_v2(sqlite3 *db, const char *name, int mode, int *frames,
                                     int *copied)
{
    checkpoints++;
    if (*wake_file != '\0')
        published = file_sum(wake_file);
    return __real_sqlite3_wal_checkpoint_v2(db, name, mode, frames, copied);
}

/* Fills the WAL until the next commit of any process makes a checkpoint due. */
static void fill_wal(const test_dir *dir)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open_v2(dir->file, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "PRAGMA wal_autocheckpoint = 0; CREATE TABLE IF NOT EXISTS filler (bytes);"
                     " INSERT INTO filler VALUES (zeroblob(3000000))",
                     NULL, NULL, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    checkpoints = 0;
}

/* A waiter in another process must not have to wait for the checkpoint, too. */
static void a_release_is_published_before_its_checkpoint(void **state)
{
    const test_dir *dir = *state;
    syncguard_backend *backend = open_file(dir->file);
    (void)sqlite_data_acquire(backend, "first", 30000); /* connects */
    fill_wal(dir);
    syncguard_grant grant = sqlite_data_acquire(backend, "k", 30000);
    assert_int_equal(checkpoints, 1);
    fill_wal(dir);
    syncguard_error err;
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &locked, &err));
    assert_true(locked);
    assert_int_equal(checkpoints, 0); /* a handle that only reads makes none */
    uint64_t before = file_sum(beside(dir, "locks.db-wake", wake_file));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_int_equal(checkpoints, 1);
    assert_true(published != before);
    *wake_file = '\0';
    syncguard_close(backend);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, create_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(sqlite_stored_rows_are_as_agreed),
        TEST(a_lock_of_another_boot_is_dead),
        TEST(counters_at_their_limits),
        TEST(an_unreadable_expiry_is_internal_everywhere),
        TEST(a_damaged_lock_is_still_held),
        TEST(reads_and_refusals_write_nothing),
        TEST(the_same_request_again_is_the_grant),
        TEST(cleanup_removes_only_what_it_saw),
        TEST(many_renewals_in_one_transaction),
        TEST(only_an_earlier_end_is_published),
        TEST(a_damaged_record_does_not_stop_other_renewals),
        TEST(a_grant_that_is_taken_back_wakes_a_waiter),
        TEST(a_release_is_published_before_its_checkpoint),
        TEST(sqlite_list_leaves_dead_locks_out),
        TEST(findings_for_doctor),
        TEST(long_keys_and_two_handles),
    };
    if (argc < 2)
        return 64;
    worker_path = argv[1];
    return cmocka_run_group_tests_name("sqlite data", tests, NULL, NULL);
}
