/*
 * The calls of Firestore's REST interface, and what their answers mean.
 *
 * Answers are sorted by the status word of the error (or the HTTP status where a proxy answered),
 * never by texts; texts of the server may hold document names and are not passed on.
 */
#include <string.h>
#include <sys/random.h>

#include "internal.h"

/* What a status word means. The last three say what it means for a commit. */
typedef struct fs_meaning {
    const char *word;
    long http;
    syncguard_status status;
    bool conflict;  /* of a commit: what it was conditional on has changed */
    bool ambiguous; /* of a commit: it may have been applied */
} fs_meaning;

static const fs_meaning meanings[] = {
    {"INVALID_ARGUMENT", 400, SYNCGUARD_E_INVALID_ARGUMENT, false, false},
    {"FAILED_PRECONDITION", 0, SYNCGUARD_E_INVALID_ARGUMENT, true, false},
    {"OUT_OF_RANGE", 0, SYNCGUARD_E_INVALID_ARGUMENT, false, false},
    {"UNAUTHENTICATED", 401, SYNCGUARD_E_AUTH_FAILED, false, false},
    {"PERMISSION_DENIED", 403, SYNCGUARD_E_AUTH_FAILED, false, false},
    {"NOT_FOUND", 404, SYNCGUARD_E_INVALID_ARGUMENT, true, false},
    {"ABORTED", 409, SYNCGUARD_E_SERVICE_UNAVAILABLE, true, false},
    {"ALREADY_EXISTS", 0, SYNCGUARD_E_INTERNAL, true, false},
    {"RESOURCE_EXHAUSTED", 429, SYNCGUARD_E_RATE_LIMITED, false, false},
    {"CANCELLED", 499, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
    {"INTERNAL", 500, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
    {"UNAVAILABLE", 503, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
    {"DEADLINE_EXCEEDED", 504, SYNCGUARD_E_NETWORK_TIMEOUT, false, true},
    {"UNKNOWN", 0, SYNCGUARD_E_INTERNAL, false, true},
    {"DATA_LOSS", 0, SYNCGUARD_E_INTERNAL, false, true},
    {"UNIMPLEMENTED", 501, SYNCGUARD_E_INTERNAL, false, false},
    /* No words of Firestore, but of what may stand before it. */
    {"HTTP_407", 407, SYNCGUARD_E_AUTH_FAILED, false, false},
    {"HTTP_408", 408, SYNCGUARD_E_NETWORK_TIMEOUT, false, true},
    {"HTTP_413", 413, SYNCGUARD_E_INVALID_ARGUMENT, false, false},
    {"HTTP_502", 502, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
};

static const fs_meaning unknown_meaning = {"HTTP", 0, SYNCGUARD_E_INTERNAL, false, true};

static const char *const call_names[] = {"batchGet", "commit", "batchWrite", "runQuery",
                                         "runQuery"};

static bool is_read(fs_call call)
{
    return call == FS_BATCH_GET || call == FS_QUERY || call == FS_QUERY_ALL;
}

/* The error object of an answer; streamed answers wrap it into an array. */
static const json_t *error_of(const json_t *json)
{
    const json_t *error = json_object_get(json, "error");

    for (size_t i = 0; !error && i < json_array_size(json); i++)
        error = json_object_get(json_array_get(json, i), "error");
    return json_is_object(error) ? error : NULL;
}

static const fs_meaning *meaning_of(long http, const json_t *error)
{
    const char *word = json_string_value(json_object_get(error, "status"));
    size_t count = sizeof meanings / sizeof meanings[0];

    for (size_t i = 0; word && i < count; i++) {
        if (strcmp(meanings[i].word, word) == 0)
            return &meanings[i];
    }
    for (size_t i = 0; i < count; i++) {
        if (meanings[i].http == http)
            return &meanings[i];
    }
    return &unknown_meaning;
}

static syncguard_status fail_by(const fs_meaning *meaning, fs_call call, long http,
                                fs_answer *answer, syncguard_error *err)
{
    bool conflict = call == FS_COMMIT && meaning->conflict;

    answer->conflict = answer->again = conflict;
    answer->ambiguous = answer->ambiguous || (!is_read(call) && meaning->ambiguous);
    if (conflict)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, meaning->word,
                              "others changed the documents each time before the commit");
    if (call == FS_QUERY && strcmp(meaning->word, "FAILED_PRECONDITION") == 0)
        return syncguard_fail(err, meaning->status, meaning->word,
                              "Firestore has no index for queries by lockId");
    if (meaning == &unknown_meaning)
        return syncguard_fail(err, meaning->status, meaning->word,
                              "unexpected answer to %s (HTTP %ld)", call_names[call], http);
    return syncguard_fail(err, meaning->status, meaning->word, "Firestore answered %s to %s",
                          meaning->word, call_names[call]);
}

/* --- time --- */

static void sample_clock(fs_backend *backend, const json_t *json, const fs_reply *reply)
{
    const json_t *text = json_object_get(json, "commitTime");
    int64_t server_ns = 0;

    /* The last element is the one nearest to the end of the answer. */
    if (!text && json_array_size(json) > 0)
        text = json_object_get(json_array_get(json, json_array_size(json) - 1), "readTime");
    if (json_is_string(text) && sg_fs_time_parse(json_string_value(text), &server_ns)) {
        sg_fs_clock_sample(&backend->clock, server_ns, 0, reply->start_ns, reply->end_ns);
    } else if (reply->date_s > 0) {
        /* Whole seconds, cut off: the middle of that second, half a second to each side. */
        sg_fs_clock_sample(&backend->clock,
                           reply->date_s * INT64_C(1000000000) + INT64_C(500000000),
                           INT64_C(500000000), reply->start_ns, reply->end_ns);
    }
}

/* --- one call --- */

static const char *url_of(const fs_backend *backend, fs_call call)
{
    switch (call) {
    case FS_BATCH_GET:
        return backend->names.url_batch_get;
    case FS_COMMIT:
        return backend->names.url_commit;
    case FS_BATCH_WRITE:
        return backend->names.url_batch_write;
    case FS_QUERY_ALL:
        return backend->names.url_query_all;
    case FS_QUERY:
        break;
    }
    return backend->names.url_query;
}

static syncguard_status judge(fs_backend *backend, fs_call call, const fs_reply *reply,
                              fs_answer *answer, syncguard_error *err)
{
    json_error_t why = {.text = ""};
    const json_t *error;

    answer->json =
        reply->length ? json_loadb(reply->body, reply->length, JSON_ALLOW_NUL, &why) : NULL;
    sample_clock(backend, answer->json, reply);
    error = error_of(answer->json);
    if (reply->status != 200 || error)
        return fail_by(meaning_of(reply->status, error), call, reply->status, answer, err);
    if (is_read(call) ? json_is_array(answer->json) : json_is_object(answer->json))
        return SYNCGUARD_OK;
    answer->ambiguous = answer->ambiguous || !is_read(call);
    if (reply->length && !answer->json && json_error_code(&why) == json_error_out_of_memory)
        return syncguard_fail_memory(err);
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "unreadable answer to %s",
                          call_names[call]);
}

static syncguard_status send_once(fs_backend *backend, fs_call call, const char *body,
                                  const fs_token *token, const syncguard_limits *limits,
                                  fs_answer *answer, long *http, syncguard_error *err)
{
    fs_request request = {url_of(backend, call),
                          body,
                          strlen(body),
                          {"Content-Type: application/json", token->header, NULL},
                          backend->auth.kind == FS_AUTH_EMULATOR &&
                              sg_fs_url_loopback(url_of(backend, call))};
    fs_reply reply;
    syncguard_status status;

    status = sg_fs_transfer(&backend->pool, &request, limits, &reply, err);
    *http = reply.status;
    if (!is_read(call) && reply.resent)
        answer->ambiguous = true;
    if (status == SYNCGUARD_OK) {
        status = judge(backend, call, &reply, answer, err);
    } else {
        answer->again = reply.broken;
        if (!is_read(call) && reply.sent)
            answer->ambiguous = true;
    }
    sg_fs_reply_free(&reply);
    return status;
}

syncguard_status sg_fs_call(fs_backend *backend, fs_call call, json_t *body,
                            const syncguard_limits *limits, fs_answer *answer, syncguard_error *err)
{
    char *text = sg_fs_dump(body);
    syncguard_status status = SYNCGUARD_OK;
    long http = 0;

    memset(answer, 0, sizeof *answer);
    json_decref(body);
    if (!text)
        return syncguard_fail_memory(err);
    /* A refused token is replaced once: it may have been revoked before its time. */
    for (int round = 0; round < 2; round++) {
        fs_token *token = NULL;
        status = sg_fs_auth_get(&backend->auth, &backend->pool, limits, &token, err);
        if (status != SYNCGUARD_OK)
            break;
        status = send_once(backend, call, text, token, limits, answer, &http, err);
        if (http == 401)
            sg_fs_auth_refused(&backend->auth, token);
        sg_fs_token_drop(token);
        if (http != 401 || backend->auth.kind == FS_AUTH_EMULATOR || round == 1)
            break;
        json_decref(answer->json);
        answer->json = NULL;
    }
    syncguard_free(text);
    return status;
}

void sg_fs_answer_free(fs_answer *answer)
{
    json_decref(answer->json);
    answer->json = NULL;
}

/* --- bodies and answers --- */

json_t *sg_fs_writes(json_t *list)
{
    return sg_fs_with(json_object(), "writes", list);
}

json_t *sg_fs_documents(const char *first, const char *second)
{
    if (second)
        return json_pack("{s:[s,s]}", "documents", first, second);
    return json_pack("{s:[s]}", "documents", first);
}

syncguard_status sg_fs_pick(const fs_answer *answer, const char *name, const json_t **document,
                            syncguard_error *err)
{
    *document = NULL;
    for (size_t i = 0; i < json_array_size(answer->json); i++) {
        const json_t *item = json_array_get(answer->json, i);
        const json_t *found = json_object_get(item, "found");
        const char *missing = json_string_value(json_object_get(item, "missing"));
        const char *its_name = json_string_value(json_object_get(found, "name"));

        if (missing && strcmp(missing, name) == 0)
            return SYNCGUARD_OK;
        if (its_name && strcmp(its_name, name) == 0) {
            *document = found;
            return SYNCGUARD_OK;
        }
    }
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                          "the answer to batchGet lacks a document that was asked for");
}

const char *sg_fs_write_time(const fs_answer *answer, size_t index)
{
    const json_t *results = json_object_get(answer->json, "writeResults");

    return json_string_value(json_object_get(json_array_get(results, index), "updateTime"));
}

syncguard_status sg_fs_backoff(int attempt, const syncguard_limits *limits, syncguard_error *err)
{
    int64_t pause_ms = INT64_C(5) << (2 * (attempt - 1));
    uint32_t random = 0;

    /* Equal jitter. Without randomness the pause is only less well spread. */
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = (uint32_t)syncguard_clock_ns();
    pause_ms = pause_ms / 2 + (int64_t)(random % (uint32_t)(pause_ms / 2 + 1));
    return syncguard_wait_until(syncguard_clock_ns() + pause_ms * SYNCGUARD_NS_PER_MS, limits, err);
}
