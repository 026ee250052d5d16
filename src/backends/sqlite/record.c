/*
 * See record.h.
 *
 * Liveness is decided by the boot clock that all processes of one kernel share; the times of the
 * wall clock are only for display.
 */
#include "record.h"

#include <string.h>

/* The columns of the statements that read a record. */
enum { KEY, LOCK_ID, OWNER, FENCE, EXPIRES_AT, ACQUIRED_AT, BOOT_ID, BOOT_SET, BOOT_EXPIRES };

/* Larger integers are not times that we wrote. */
#define LARGEST_TIME_MS INT64_C(9007199254740991)

static bool sqlite_column_read_time(sqlite3_stmt *statement, int column, int64_t *out)
{
    *out = 0;
    if (sqlite3_column_type(statement, column) != SQLITE_INTEGER)
        return false;
    *out = sqlite3_column_int64(statement, column);
    return *out >= -LARGEST_TIME_MS && *out <= LARGEST_TIME_MS;
}

/* Reads a text of at most size - 1 bytes. False, with an empty text, if the column does not hold
 * one. */
static bool sqlite_column_read_text(sqlite3_stmt *statement, int column, char *out, size_t size,
                                    size_t *length)
{
    out[0] = '\0';
    *length = 0;
    if (sqlite3_column_type(statement, column) != SQLITE_TEXT)
        return false;
    const unsigned char *text = sqlite3_column_text(statement, column);
    size_t bytes = (size_t)sqlite3_column_bytes(statement, column);
    if (text == NULL || bytes >= size)
        return false;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    *length = bytes;
    return true;
}

/*
 * Sets how long the record still counts, tolerance included; 0 or less: it is dead.
 *
 * Two known boot ids that differ are two boots: the record is dead. Where one of them is unknown
 * the record may be of this boot. The clock only runs forward, so a record that was set in this
 * boot was set before now; one that seems to be set later is of an earlier boot. A record that is
 * not excluded in this way counts until it expires. So a lock of an earlier boot may be held for
 * its TTL once more, but a live one is never freed.
 */
static bool sqlite_record_read_remaining(const sg_sqlite_boot *boot, sqlite3_stmt *statement,
                                         sg_sqlite_record *record)
{
    char id[SG_SQLITE_BOOT_ID_SIZE];
    size_t length = 0;
    int64_t now_ms = sg_sqlite_boot_ms(boot, record->read_ns);
    int64_t set_ms = 0;
    int64_t expires_ms = 0;
    if (!sqlite_column_read_text(statement, BOOT_ID, id, sizeof id, &length) ||
        !sqlite_column_read_time(statement, BOOT_SET, &set_ms) ||
        !sqlite_column_read_time(statement, BOOT_EXPIRES, &expires_ms))
        return false;
    bool unknown = length == 0 || boot->id[0] == '\0';
    record->of_this_boot = unknown ? now_ms >= set_ms : strcmp(id, boot->id) == 0;
    if (!record->of_this_boot)
        record->remaining_ms = -now_ms; /* dead at least since this boot began */
    else if (syncguard_is_live(expires_ms, now_ms))
        record->remaining_ms = syncguard_remaining_ms(expires_ms, now_ms);
    else
        record->remaining_ms = expires_ms - now_ms;
    return true;
}

/* The time of day at which the stored expiry leaves as much of the lease as the boot clock does, so
 * that steps of the wall clock since the expiry was written do not count. For a record of an
 * earlier boot, only the wall clock tells. */
static int64_t sqlite_record_now(const sg_sqlite_record *record)
{
    if (!record->of_this_boot)
        return syncguard_wall_ms();
    int64_t left_ms =
        record->live ? record->remaining_ms - SYNCGUARD_TIME_TOLERANCE_MS : record->remaining_ms;
    return record->stored.expires_at_ms - left_ms;
}

/* Only the expiry must be readable: a damaged lock is held until it expires, and operations that
 * need the damaged field fail. */
bool sg_sqlite_record_read(const sg_sqlite *sqlite, sqlite3_stmt *statement,
                           sg_sqlite_record *record)
{
    syncguard_record *stored = &record->stored;
    bool keyed = sqlite_column_read_text(statement, KEY, stored->key, sizeof stored->key,
                                         &record->key_length);
    if (!sqlite_record_read_remaining(&sqlite->boot, statement, record))
        return false;
    record->found = true;
    record->live = record->remaining_ms > 0;
    record->dated = sqlite_column_read_time(statement, EXPIRES_AT, &stored->expires_at_ms);
    (void)sqlite_column_read_time(statement, ACQUIRED_AT, &stored->acquired_at_ms);
    stored->now_ms = sqlite_record_now(record);
    size_t length = 0;
    (void)sqlite_column_read_text(statement, OWNER, stored->owner, sizeof stored->owner, &length);
    (void)sqlite_column_read_text(statement, LOCK_ID, stored->lock_id, sizeof stored->lock_id,
                                  &length);
    (void)sqlite_column_read_text(statement, FENCE, stored->fence, sizeof stored->fence, &length);
    record->whole = keyed && record->dated && syncguard_fence_valid(stored->fence) &&
                    syncguard_lock_id_valid(stored->lock_id);
    return true;
}

syncguard_status sg_sqlite_record_unreadable(const sg_sqlite *sqlite, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "%s: the stored record cannot be read",
                          sqlite->connection.path);
}

syncguard_status sg_sqlite_record_find(sg_sqlite *sqlite, sg_sqlite_statement which,
                                       const char *text, size_t length, sg_sqlite_record *record,
                                       syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    record->found = false;
    record->live = false;
    syncguard_status status = sg_sqlite_prepare(&sqlite->connection, which, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, text, (int)length, SQLITE_STATIC);
    bool row = false;
    status = sg_sqlite_step(&sqlite->connection, statement, &row, err);
    record->read_ns = syncguard_clock_ns();
    if (row && !sg_sqlite_record_read(sqlite, statement, record))
        status = sg_sqlite_record_unreadable(sqlite, err);
    sqlite3_reset(statement);
    return status;
}

syncguard_status sg_sqlite_record_owned(const sg_sqlite_record *record, const char *lock_id,
                                        syncguard_event_reason *reason)
{
    if (record->live && strcmp(record->stored.lock_id, lock_id) == 0)
        return SYNCGUARD_OK;
    *reason = record->found ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
    return SYNCGUARD_ABSENT;
}
