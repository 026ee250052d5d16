/* See request.h. Every answer is also a sample of the server's clock. */
#include "request.h"

#include <string.h>

#include "errors.h"
#include "text.h"

static const char *const method_names[] = {"batchGet", "commit", "batchWrite", "runQuery",
                                           "runQuery"};

static bool firestore_method_is_read(sg_firestore_method method)
{
    return method != SG_FIRESTORE_COMMIT && method != SG_FIRESTORE_BATCH_WRITE;
}

/* The error object of an answer; streamed answers wrap it into an array. */
static const json_t *firestore_answer_error(const json_t *json)
{
    const json_t *error = json_object_get(json, "error");
    for (size_t i = 0; error == NULL && i < json_array_size(json); i++)
        error = json_object_get(json_array_get(json, i), "error");
    return json_is_object(error) ? error : NULL;
}

static syncguard_status firestore_request_fail(const sg_firestore_context *ctx, const json_t *error,
                                               long http, sg_firestore_method method,
                                               sg_firestore_answer *answer)
{
    const char *word = json_string_value(json_object_get(error, "status"));
    const sg_firestore_error_class *class = sg_firestore_classify(word, http);
    answer->conflict = method == SG_FIRESTORE_COMMIT && class->conflict;
    answer->retryable = answer->conflict;
    if (!firestore_method_is_read(method) && class->may_have_been_applied)
        answer->may_have_been_applied = true;
    if (answer->conflict)
        return syncguard_fail(ctx->err, SYNCGUARD_E_SERVICE_UNAVAILABLE, class->word,
                              "others changed the documents each time before the commit");
    if (method == SG_FIRESTORE_QUERY && strcmp(class->word, "FAILED_PRECONDITION") == 0)
        return syncguard_fail(ctx->err, class->status, class->word,
                              "Firestore has no index for queries by lockId");
    return syncguard_fail(ctx->err, class->status, class->word,
                          "Firestore answered %s to %s (HTTP %ld)", class->word,
                          method_names[method], http);
}

static void firestore_request_sample_clock(sg_firestore_clock *clock, const json_t *json,
                                           const sg_firestore_reply *reply)
{
    static const int64_t half_second_ns = INT64_C(500000000);
    const json_t *time = json_object_get(json, "commitTime");

    /* The last element is the one nearest to the end of the answer. */
    if (time == NULL && json_array_size(json) > 0)
        time = json_object_get(json_array_get(json, json_array_size(json) - 1), "readTime");
    int64_t server_ns;
    int64_t slack_ns = 0;
    if (!json_is_string(time) || !sg_firestore_time_parse(json_string_value(time), &server_ns)) {
        if (reply->date_s <= 0)
            return;
        /* Whole seconds, rounded down: the middle of that second, half a second to each side. */
        slack_ns = half_second_ns;
        server_ns = (2 * reply->date_s + 1) * half_second_ns;
    }
    sg_firestore_clock_sample(clock, server_ns, slack_ns, reply->start_ns, reply->end_ns);
}

static syncguard_status firestore_request_interpret(const sg_firestore_context *ctx,
                                                    sg_firestore_method method,
                                                    const sg_firestore_reply *reply,
                                                    sg_firestore_answer *answer)
{
    json_error_t why = {.text = ""};
    answer->json =
        reply->length != 0 ? json_loadb(reply->body, reply->length, JSON_ALLOW_NUL, &why) : NULL;
    firestore_request_sample_clock(&ctx->backend->clock, answer->json, reply);
    const json_t *error = firestore_answer_error(answer->json);
    if (reply->status != 200 || error != NULL)
        return firestore_request_fail(ctx, error, reply->status, method, answer);
    if ((firestore_method_is_read(method) ? json_is_array(answer->json)
                                          : json_is_object(answer->json)) != 0)
        return SYNCGUARD_OK;
    if (!firestore_method_is_read(method))
        answer->may_have_been_applied = true;
    if (reply->length != 0 && answer->json == NULL &&
        json_error_code(&why) == json_error_out_of_memory)
        return syncguard_fail_memory(ctx->err);
    return syncguard_fail(ctx->err, SYNCGUARD_E_INTERNAL, NULL, "unreadable answer to %s",
                          method_names[method]);
}

/* libcurl does not report its connections. A reconnect shows when a request failed and a later one
 * did not, or when libcurl had to send a request twice. */
static void firestore_reconnect_report(sg_firestore_backend *backend, syncguard_status status,
                                       bool resent)
{
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE || status == SYNCGUARD_E_NETWORK_TIMEOUT)
        atomic_store(&backend->unreachable, true);
    else if (status == SYNCGUARD_OK && (resent || (atomic_load(&backend->unreachable) &&
                                                   atomic_exchange(&backend->unreachable, false))))
        syncguard_backend_reconnected(&backend->base);
}

static syncguard_status firestore_request_send_once(const sg_firestore_context *ctx,
                                                    sg_firestore_method method,
                                                    sg_firestore_http_request *request,
                                                    sg_firestore_answer *answer, long *http)
{
    sg_firestore_backend *backend = ctx->backend;
    sg_firestore_token *token = NULL;
    syncguard_status status =
        sg_firestore_tokens_get(&backend->tokens, &backend->pool, ctx->limits, &token, ctx->err);
    *http = 0;
    if (status != SYNCGUARD_OK)
        return status;
    request->headers[1] = token->header;
    sg_firestore_reply reply;
    status = sg_firestore_transfer(&backend->pool, request, ctx->limits, &reply, ctx->err);
    *http = reply.status;
    firestore_reconnect_report(backend, status, reply.resent);
    if (!firestore_method_is_read(method) &&
        (reply.resent || (status != SYNCGUARD_OK && reply.sent)))
        answer->may_have_been_applied = true;
    if (status == SYNCGUARD_OK)
        status = firestore_request_interpret(ctx, method, &reply, answer);
    else
        answer->retryable = reply.broken;
    if (*http == 401)
        sg_firestore_tokens_refused(&backend->tokens, token);
    sg_firestore_reply_free(&reply);
    sg_firestore_token_drop(token);
    return status;
}

syncguard_status sg_firestore_call(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *body, sg_firestore_answer *answer)
{
    const sg_firestore_names *names = &ctx->backend->names;
    bool emulator = ctx->backend->credentials.kind == SG_FIRESTORE_EMULATOR;
    char *text = sg_firestore_json_text(body);
    char *url = sg_firestore_format("%s:%s?prettyPrint=false",
                                    method == SG_FIRESTORE_QUERY ? names->parent_url : names->url,
                                    method_names[method]);
    memset(answer, 0, sizeof *answer);
    json_decref(body);
    syncguard_status status = SYNCGUARD_E_OUT_OF_MEMORY;
    if (text != NULL && url != NULL) {
        sg_firestore_http_request request = {
            url,
            text,
            strlen(text),
            {"Content-Type: application/json", NULL},
            emulator && sg_firestore_url_loopback(url),
        };
        long http;
        status = firestore_request_send_once(ctx, method, &request, answer, &http);
        /* A refused token is replaced once: it may have been revoked before its time. */
        if (http == 401 && !emulator) {
            sg_firestore_answer_free(answer);
            status = firestore_request_send_once(ctx, method, &request, answer, &http);
        }
    } else {
        status = syncguard_fail_memory(ctx->err);
    }
    syncguard_free(url);
    syncguard_free(text);
    return status;
}

syncguard_status sg_firestore_commit(const sg_firestore_context *ctx, json_t *writes,
                                     sg_firestore_answer *answer)
{
    return sg_firestore_call(ctx, SG_FIRESTORE_COMMIT,
                             sg_firestore_set(json_object(), "writes", writes), answer);
}

void sg_firestore_answer_free(sg_firestore_answer *answer)
{
    json_decref(answer->json);
    answer->json = NULL;
}

syncguard_status sg_firestore_answer_document(const sg_firestore_answer *answer, const char *name,
                                              const json_t **document, syncguard_error *err)
{
    *document = NULL;
    for (size_t i = 0; i < json_array_size(answer->json); i++) {
        const json_t *item = json_array_get(answer->json, i);
        const json_t *found = json_object_get(item, "found");
        const char *missing = json_string_value(json_object_get(item, "missing"));
        const char *its_name = json_string_value(json_object_get(found, "name"));
        if (missing != NULL && strcmp(missing, name) == 0)
            return SYNCGUARD_OK;
        if (its_name != NULL && strcmp(its_name, name) == 0) {
            *document = found;
            return SYNCGUARD_OK;
        }
    }
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                          "the answer to batchGet lacks a document that was asked for");
}

const char *sg_firestore_answer_time(const sg_firestore_answer *answer, size_t index)
{
    const json_t *results = json_object_get(answer->json, "writeResults");
    return json_string_value(json_object_get(json_array_get(results, index), "updateTime"));
}
