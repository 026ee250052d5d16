/* A stored lock, as operations read it. */
#ifndef SG_SQLITE_RECORD_H
#define SG_SQLITE_RECORD_H

#include "backend.h"

typedef struct sg_sqlite_record {
    bool found;
    bool live;
    bool of_this_boot;    /* else it is dead */
    bool dated;           /* stored.expires_at_ms could be read */
    bool whole;           /* everything that a lookup returns could be read */
    int64_t read_ns;      /* our clock, after the record was read */
    int64_t remaining_ms; /* until it stops being live; 0 or less: dead for that long */
    size_t key_length;
    syncguard_record stored; /* texts that cannot be read are empty */
} sg_sqlite_record;

/* Reads the record of a key or a lock id (SG_SQLITE_READ_KEY or _ID), then the clock. Internal if
 * its expiry cannot be read. */
syncguard_status sg_sqlite_record_find(sg_sqlite *sqlite, sg_sqlite_statement which,
                                       const char *text, size_t length, sg_sqlite_record *record,
                                       syncguard_error *err);
/* Reads the row of a statement that was stepped. The caller has set read_ns. False, with only the
 * key read, if its expiry cannot be read. */
bool sg_sqlite_record_read(const sg_sqlite *sqlite, sqlite3_stmt *statement,
                           sg_sqlite_record *record);
/* Internal: a record cannot be read. */
syncguard_status sg_sqlite_record_unreadable(const sg_sqlite *sqlite, syncguard_error *err);
/* OK if the record is live and has this lock id; else ABSENT, with its reason. */
syncguard_status sg_sqlite_record_owned(const sg_sqlite_record *record, const char *lock_id,
                                        syncguard_event_reason *reason);

#endif
