/* The calls of Firestore's REST interface, and what their answers mean. */
#ifndef SG_FIRESTORE_REQUEST_H
#define SG_FIRESTORE_REQUEST_H

#include <jansson.h>

#include "backend.h"

typedef enum sg_firestore_method {
    SG_FIRESTORE_BATCH_GET,
    SG_FIRESTORE_COMMIT,
    SG_FIRESTORE_BATCH_WRITE,
    SG_FIRESTORE_QUERY,    /* below the parent of the lock collection */
    SG_FIRESTORE_QUERY_ALL /* below the database */
} sg_firestore_method;

typedef struct sg_firestore_answer {
    json_t *json;
    bool retryable;             /* failure: a conflict or a broken connection */
    bool conflict;              /* failure: a precondition of the commit did not hold */
    bool may_have_been_applied; /* although no success was received */
} sg_firestore_answer;

/* Sends body (taken over; NULL: out of memory). OK: answer->json is an array for reads, else an
 * object. The caller must call sg_firestore_answer_free in every case. */
syncguard_status sg_firestore_call(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *body, sg_firestore_answer *answer);
/* One commit of these writes (an array, taken over; NULL: out of memory); otherwise like
 * sg_firestore_call. */
syncguard_status sg_firestore_commit(const sg_firestore_context *ctx, json_t *writes,
                                     sg_firestore_answer *answer);
void sg_firestore_answer_free(sg_firestore_answer *answer);
/* The document with this name in a batchGet's answer: OK (*document may be NULL: missing) or
 * Internal if the answer does not say. */
syncguard_status sg_firestore_answer_document(const sg_firestore_answer *answer, const char *name,
                                              const json_t **document, syncguard_error *err);
/* updateTime of write number index; NULL if the answer lacks it. */
const char *sg_firestore_answer_time(const sg_firestore_answer *answer, size_t index);

/* ---- retry.c: attempts ---- */

/* After a failure: pauses, and returns true if the caller must make another attempt (numbered from
 * 1). If the limits end the pause, *status is the reason. */
bool sg_firestore_retry(const sg_firestore_context *ctx, const sg_firestore_answer *answer,
                        int *attempt, syncguard_status *status);
/* sg_firestore_call for a method that reads, with all its attempts and a last check of limits. */
syncguard_status sg_firestore_read(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *body, sg_firestore_answer *answer);

#endif
