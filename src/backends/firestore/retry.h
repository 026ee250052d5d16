/* Attempts: reads that are repeated when their connection breaks, and the pauses between attempts.
 */
#ifndef SG_FIRESTORE_RETRY_H
#define SG_FIRESTORE_RETRY_H

#include "request.h"

/* After a failure: pauses, and returns true if the caller must make another attempt (numbered from
 * 1). If the limits end the pause, *status is the reason. */
bool sg_firestore_retry(const sg_firestore_context *ctx, const sg_firestore_answer *answer,
                        int *attempt, syncguard_status *status);
/* sg_firestore_call for a method that reads, with all its attempts and a last check of limits. */
syncguard_status sg_firestore_read(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *body, sg_firestore_answer *answer);

#endif
