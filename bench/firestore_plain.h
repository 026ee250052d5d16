/*
 * The same requests by hand: batchGet, conditional commit of lock and counter, conditional delete,
 * with plain libcurl on one kept-alive connection, and as little else as will do.
 */
#ifndef BENCH_FIRESTORE_PLAIN_H
#define BENCH_FIRESTORE_PLAIN_H

#include <curl/curl.h>
#include <stdatomic.h>

#include <syncguard.h>

#include "measure.h"

#define DOCUMENTS "projects/bench/databases/(default)/documents"

typedef struct plain {
    CURL *easy;
    struct curl_slist *headers;
    char url[3][256]; /* batchGet, commit */
    char answer[8192];
    size_t length;
} plain;

static inline void bench_die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline size_t plain_collect(char *data, size_t size, size_t count, void *context)
{
    plain *self = context;
    size_t length = size * count;

    if (self->length + length >= sizeof self->answer)
        return 0;
    memcpy(self->answer + self->length, data, length);
    self->length += length;
    self->answer[self->length] = '\0';
    return length;
}

static inline void plain_open(plain *self)
{
    const char *host = getenv("FIRESTORE_EMULATOR_HOST");

    if (!host)
        bench_die("FIRESTORE_EMULATOR_HOST is not set");
    self->easy = curl_easy_init();
    self->headers = curl_slist_append(NULL, "Content-Type: application/json");
    self->headers = curl_slist_append(self->headers, "Authorization: Bearer owner");
    snprintf(self->url[0], sizeof self->url[0], "http://%s/v1/%s:batchGet", host, DOCUMENTS);
    snprintf(self->url[1], sizeof self->url[1], "http://%s/v1/%s:commit", host, DOCUMENTS);
    curl_easy_setopt(self->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(self->easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(self->easy, CURLOPT_HTTPHEADER, self->headers);
    curl_easy_setopt(self->easy, CURLOPT_WRITEFUNCTION, plain_collect);
    curl_easy_setopt(self->easy, CURLOPT_WRITEDATA, self);
}

static inline void plain_close(plain *self)
{
    curl_easy_cleanup(self->easy);
    curl_slist_free_all(self->headers);
}

static inline void plain_post(plain *self, int which, const char *body)
{
    long status = 0;

    self->length = 0;
    curl_easy_setopt(self->easy, CURLOPT_URL, self->url[which]);
    curl_easy_setopt(self->easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(self->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    if (curl_easy_perform(self->easy) != CURLE_OK)
        bench_die("plain: no answer");
    curl_easy_getinfo(self->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        bench_die(self->answer);
}

/* Copies the text after the last "updateTime": " of the answer. */
static inline bool plain_time(const plain *self, char out[64])
{
    const char *at = self->answer;
    const char *found = NULL;

    while ((at = strstr(at, "\"updateTime\": \"")) != NULL) {
        at += strlen("\"updateTime\": \"");
        found = at;
    }
    if (found)
        snprintf(out, 64, "%.*s", (int)strcspn(found, "\""), found);
    return found != NULL;
}

static inline void plain_pair(plain *self, const char *key, int round)
{
    char body[4096];
    char condition[128] = "\"exists\":false";
    char counter_time[64];
    char lock_time[64];
    long long now = (long long)time(NULL) * 1000;

    snprintf(body, sizeof body, "{\"documents\":[\"%s/locks/%s\",\"%s/fence_counters/fence:%s\"]}",
             DOCUMENTS, key, DOCUMENTS, key);
    plain_post(self, 0, body);
    if (plain_time(self, counter_time))
        snprintf(condition, sizeof condition, "\"updateTime\":\"%s\"", counter_time);
    snprintf(body, sizeof body,
             "{\"writes\":[{\"update\":{\"name\":\"%s/locks/%s\",\"fields\":{"
             "\"lockId\":{\"stringValue\":\"AAAAAAAAAAAAAAAAAAAAAA\"},"
             "\"key\":{\"stringValue\":\"%s\"},\"fence\":{\"stringValue\":\"%015d\"},"
             "\"expiresAtMs\":{\"integerValue\":\"%lld\"},"
             "\"acquiredAtMs\":{\"integerValue\":\"%lld\"}}},"
             "\"currentDocument\":{\"exists\":false}},"
             "{\"update\":{\"name\":\"%s/fence_counters/fence:%s\",\"fields\":{"
             "\"fence\":{\"stringValue\":\"%015d\"},\"keyDebug\":{\"stringValue\":\"%s\"}}},"
             "\"currentDocument\":{%s}}]}",
             DOCUMENTS, key, key, round, now + 30000, now, DOCUMENTS, key, round, key, condition);
    plain_post(self, 1, body);
    if (!plain_time(self, lock_time))
        bench_die("plain: no updateTime");
    snprintf(body, sizeof body,
             "{\"writes\":[{\"delete\":\"%s/locks/%s\",\"currentDocument\":"
             "{\"updateTime\":\"%s\"}}]}",
             DOCUMENTS, key, lock_time);
    plain_post(self, 1, body);
}

/* Conflicts and broken connections, as the handle logs them. */
static atomic_int bench_conflicts;

static inline void bench_log(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    if (level == SYNCGUARD_LOG_DEBUG)
        atomic_fetch_add(&bench_conflicts, 1);
    else
        fprintf(stderr, "%s\n", message);
}

static inline syncguard_backend *our_open(void)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;

    options.log = bench_log;
    if (syncguard_open("firestore://bench", &options, &backend, &err) != SYNCGUARD_OK)
        bench_die(err.message);
    return backend;
}

static inline void our_pair(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_error err;

    if (syncguard_acquire(backend, key, 30000, NULL, &grant, &err) != SYNCGUARD_OK ||
        syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        bench_die(err.message);
}

#endif
