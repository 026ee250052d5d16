/* Attempts: reads that are repeated when their connection breaks, and the pauses between attempts.
 * Not a part of request.c: a test puts itself between the attempts and their requests. */
#include "request.h"

#include <string.h>

#define MAX_ATTEMPTS 5

bool sg_firestore_retry(const sg_firestore_context *ctx, const sg_firestore_answer *answer,
                        int *attempt, syncguard_status *status)
{
    if (answer->retryable)
        syncguard_backend_log(&ctx->backend->base, SYNCGUARD_LOG_DEBUG,
                              "attempt %d of a request failed: %s", *attempt,
                              answer->conflict ? "conflict" : "connection broke");
    if (!answer->retryable || *attempt >= MAX_ATTEMPTS)
        return false;
    /* At most 5, 20, 80, 320 ms. */
    syncguard_status waited = syncguard_backoff_wait(5 * SYNCGUARD_NS_PER_MS, 2 * (*attempt - 1),
                                                     INT64_MAX, ctx->limits, ctx->err);
    if (waited != SYNCGUARD_OK) {
        *status = waited;
        return false;
    }
    (*attempt)++;
    return true;
}

syncguard_status sg_firestore_read(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *body, sg_firestore_answer *answer)
{
    memset(answer, 0, sizeof *answer);
    syncguard_status status;
    int attempt = 1;
    for (;;) {
        status = syncguard_limits_check(ctx->limits, ctx->err);
        if (status != SYNCGUARD_OK)
            break;
        status = sg_firestore_call(ctx, method, json_incref(body), answer);
        if (status == SYNCGUARD_OK || !sg_firestore_retry(ctx, answer, &attempt, &status))
            break;
        sg_firestore_answer_free(answer);
    }
    json_decref(body);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(ctx->limits, ctx->err);
    return status;
}
