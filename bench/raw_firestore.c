/*
 * The same requests by hand, to an emulator: batchGet, conditional commit of lock and counter,
 * conditional delete, with plain libcurl on one kept-alive connection, and as little else as will
 * do.
 */
#include <curl/curl.h>
#include <time.h>

#include "bench.h"

#define DOCUMENTS "projects/bench/databases/(default)/documents"

typedef struct plain {
    CURL *easy;
    struct curl_slist *headers;
    char url[2][256]; /* batchGet, commit */
    char answer[8192];
    size_t length;
    int round;
} plain;

static size_t collect(char *data, size_t size, size_t count, void *context)
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

static void *open_raw(const char *url)
{
    const char *host = getenv("FIRESTORE_EMULATOR_HOST");
    plain *self = calloc(1, sizeof *self);
    (void)url;
    if (host == NULL)
        bench_die("firestore", "FIRESTORE_EMULATOR_HOST is not set");
    if (self == NULL || (self->easy = curl_easy_init()) == NULL)
        bench_die("firestore", "out of memory");
    self->headers = curl_slist_append(NULL, "Content-Type: application/json");
    self->headers = curl_slist_append(self->headers, "Authorization: Bearer owner");
    snprintf(self->url[0], sizeof self->url[0], "http://%s/v1/%s:batchGet", host, DOCUMENTS);
    snprintf(self->url[1], sizeof self->url[1], "http://%s/v1/%s:commit", host, DOCUMENTS);
    curl_easy_setopt(self->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(self->easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(self->easy, CURLOPT_HTTPHEADER, self->headers);
    curl_easy_setopt(self->easy, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(self->easy, CURLOPT_WRITEDATA, self);
    return self;
}

static void close_raw(void *raw)
{
    plain *self = raw;
    curl_easy_cleanup(self->easy);
    curl_slist_free_all(self->headers);
    free(self);
}

static void post(plain *self, int which, const char *body)
{
    long status = 0;
    self->length = 0;
    curl_easy_setopt(self->easy, CURLOPT_URL, self->url[which]);
    curl_easy_setopt(self->easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(self->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    if (curl_easy_perform(self->easy) != CURLE_OK)
        bench_die("plain libcurl", "no answer");
    curl_easy_getinfo(self->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        bench_die("plain libcurl", self->answer);
}

/* Copies the text after the last "updateTime": " of the answer. */
static bool update_time(const plain *self, char out[64])
{
    const char *at = self->answer;
    const char *found = NULL;
    while ((at = strstr(at, "\"updateTime\": \"")) != NULL) {
        at += strlen("\"updateTime\": \"");
        found = at;
    }
    if (found != NULL)
        snprintf(out, 64, "%.*s", (int)strcspn(found, "\""), found);
    return found != NULL;
}

static void pair(void *raw, const char *key)
{
    plain *self = raw;
    char body[4096];
    char condition[128] = "\"exists\":false";
    char counter_time[64];
    char lock_time[64];
    long long now = (long long)time(NULL) * 1000;
    int round = ++self->round;

    snprintf(body, sizeof body, "{\"documents\":[\"%s/locks/%s\",\"%s/fence_counters/fence:%s\"]}",
             DOCUMENTS, key, DOCUMENTS, key);
    post(self, 0, body);
    if (update_time(self, counter_time))
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
    post(self, 1, body);
    if (!update_time(self, lock_time))
        bench_die("plain libcurl", "no updateTime");
    snprintf(body, sizeof body,
             "{\"writes\":[{\"delete\":\"%s/locks/%s\",\"currentDocument\":"
             "{\"updateTime\":\"%s\"}}]}",
             DOCUMENTS, key, lock_time);
    post(self, 1, body);
}

const bench_raw bench_raw_firestore = {
    .name = "firestore",
    .scheme = "firestore:",
    .client = "plain libcurl, same requests",
    .variants = {{"pair", NULL, 1.1}},
    .open = open_raw,
    .close = close_raw,
    .pair = pair,
    .most_connections = 32, /* max_connections */
    .rate_bar = 0.9,
    .rate_threads = 16,
    .conflict_free = true,
    .round_trip_name = "plain libcurl pair",
    .turns = 20,
    .remembers = 3000,
};
