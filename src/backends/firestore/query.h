/* Reads that the operations share: a lock by name, by lock id, a whole collection. */
#ifndef SG_FIRESTORE_QUERY_H
#define SG_FIRESTORE_QUERY_H

#include "request.h"

/* Reads a lock document. OK, ABSENT (it does not exist) or a failure. lock->name is name. */
syncguard_status sg_firestore_get_lock(const sg_firestore_context *ctx, const char *name,
                                       sg_firestore_lock *lock);

/* The same by key; the document's name is written to `name`. */
syncguard_status sg_firestore_get_by_key(const sg_firestore_context *ctx, const char *key,
                                         size_t length, char name[SG_FIRESTORE_PATH_BYTES],
                                         sg_firestore_lock *lock);
/* A lock that this process acquired, and the name of its document. False: it is not cached. */
bool sg_firestore_cached_lock(sg_firestore_backend *backend, const char *lock_id,
                              sg_firestore_cached *cached, char name[SG_FIRESTORE_PATH_BYTES]);

/*
 * If the clock's estimate forbids an extend, tests the estimate with a read of this document, at
 * most twice a second. Nothing else is sent while extends are refused, and a clock that is slewed
 * right moves the boot clock too, so without this read extends would be refused for ever. The
 * caller must call it before it reads the clocks for the extend.
 */
syncguard_status sg_firestore_recheck_clock(const sg_firestore_context *ctx, const char *name);

/* The result of a query by lock id. */
typedef struct sg_firestore_matches {
    sg_firestore_instant at; /* by which live and dead were told apart */
    sg_firestore_lock live;  /* the last live one */
    char live_name[SG_FIRESTORE_PATH_BYTES];
    size_t live_count;
    size_t count;    /* documents that name the id */
    bool unreadable; /* one has no readable expiry: the number of live ones is unknown */
    json_t *dead;    /* writes that delete expired ones; the caller drops it */
} sg_firestore_matches;

/* Logs a warning if there are several. */
syncguard_status sg_firestore_find_by_id(const sg_firestore_context *ctx, const char *lock_id,
                                         sg_firestore_matches *found);

/* How the server would search for a lock id. The search is not executed. */
typedef enum sg_firestore_plan {
    SG_FIRESTORE_PLAN_UNKNOWN, /* the server does not say */
    SG_FIRESTORE_PLAN_INDEX,
    SG_FIRESTORE_PLAN_SCAN /* it reads the whole collection */
} sg_firestore_plan;

syncguard_status sg_firestore_explain_by_id(const sg_firestore_context *ctx, const char *lock_id,
                                            sg_firestore_plan *plan);

/* False ends the scan. name is the document's full name. */
typedef bool (*sg_firestore_document_fn)(void *context, const json_t *document, const char *name);
/* Calls fn for each document of a paged query of record.h, which it takes over. */
syncguard_status sg_firestore_scan(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *query, size_t page_size, sg_firestore_document_fn fn,
                                   void *context);

#endif
