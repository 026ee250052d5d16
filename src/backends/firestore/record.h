/* The JSON of Firestore's documents: locks, counters, writes, queries. No I/O. */
#ifndef SG_FIRESTORE_RECORD_H
#define SG_FIRESTORE_RECORD_H

#include <jansson.h>

#include "syncguard/sys/backend.h"

#define SG_FIRESTORE_TIME_SIZE 40 /* RFC 3339 text of a document's updateTime */

/* A lock document of an answer. A field of the record that cannot be read is "" or 0; ADR 0043 says
 * which operation needs which. */
typedef struct sg_firestore_lock {
    const char *name; /* belongs to the document's JSON */
    char update_time[SG_FIRESTORE_TIME_SIZE];
    bool has_expiry; /* it could be read, which is enough to tell live from dead */
    bool complete;   /* lock id, key and fence too, which is enough to show the lock */
    bool no_memory;  /* not complete because of that */
    syncguard_record record;
} sg_firestore_lock;

typedef struct sg_firestore_counter {
    int64_t value;
    char update_time[SG_FIRESTORE_TIME_SIZE];
} sg_firestore_counter;

void sg_firestore_lock_decode(const json_t *document, sg_firestore_lock *lock);
/* Internal if the document is not a counter. */
syncguard_status sg_firestore_counter_decode(const json_t *document, sg_firestore_counter *counter,
                                             syncguard_error *err);
/* Internal: a field that the operation needs cannot be read; or OutOfMemory if that was why. */
syncguard_status sg_firestore_fail_unreadable(const sg_firestore_lock *lock, syncguard_error *err);

/* Writes for a commit. update_time "": the document must not exist. NULL without memory. */
json_t *sg_firestore_write_lock(const char *name, const char *update_time,
                                const syncguard_record *record);
json_t *sg_firestore_write_fence(const char *name, const char *update_time, const char *fence,
                                 const char *key);
json_t *sg_firestore_write_expiry(const char *name, const char *update_time, int64_t expires_at_ms);
json_t *sg_firestore_write_delete(const char *name, const char *update_time);

/* Queries; NULL without memory. */
json_t *sg_firestore_query_id(const char *collection_id, const char *lock_id);
/* The first page of a collection, by document name. */
json_t *sg_firestore_query_page(const char *collection_id, int limit);
/* The first page of the documents below the collection of this full name, sub-collections
 * included. */
json_t *sg_firestore_query_below(const char *collection, int limit);
/* Changes the query of a page to that of the page after the document `last`. False without
 * memory. */
bool sg_firestore_query_next(json_t *query, const char *last);

#endif
