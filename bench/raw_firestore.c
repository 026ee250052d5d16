/*
 * The same requests by hand, to an emulator: batchGet, conditional commit of lock and counter,
 * conditional delete, with plain libcurl on one kept-alive connection, and as little else as
 * possible.
 */
#include <curl/curl.h>
#include <time.h>

#include "bench.h"

enum { BATCH_GET, COMMIT };
#define MOST_ANSWER (1 << 20)
#define PAGE 100

typedef struct plain {
    CURL *easy;
    struct curl_slist *headers;
    char host[256];
    char documents[512]; /* the prefix of the names of all documents */
    char locks[BENCH_NAME_SIZE + 32], fences[BENCH_NAME_SIZE + 32]; /* collections */
    char url[2][1024];                                              /* batchGet, commit */
    char answer[MOST_ANSWER];
    size_t length;
    int round;
} plain;

static size_t raw_firestore_collect(char *data, size_t size, size_t count, void *context)
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

/* firestore://PROJECT[/DATABASE] */
static void raw_firestore_name_documents(plain *self, const char *url)
{
    const char *project = url + strlen("firestore://");
    int length = (int)strcspn(project, "/?");
    const char *database = project[length] == '/' ? project + length + 1 : "";
    int rest = (int)strcspn(database, "?");
    snprintf(self->documents, sizeof self->documents, "projects/%.*s/databases/%.*s/documents",
             length, project, rest > 0 ? rest : 9, rest > 0 ? database : "(default)");
}

static void *raw_firestore_open(const char *url)
{
    const char *host = getenv("FIRESTORE_EMULATOR_HOST");
    plain *self = calloc(1, sizeof *self);
    if (self == NULL || (self->easy = curl_easy_init()) == NULL)
        bench_die("firestore", "out of memory");
    if (!bench_option(url, "emulator_host", self->host, sizeof self->host)) {
        if (host == NULL)
            bench_die("firestore", "FIRESTORE_EMULATOR_HOST is not set");
        snprintf(self->host, sizeof self->host, "%s", host);
    }
    if (strncmp(url, "firestore://", 12) != 0 ||
        !bench_option(url, "collection", self->locks, sizeof self->locks) ||
        !bench_option(url, "fence_collection", self->fences, sizeof self->fences))
        bench_die("firestore", "there are no collections of our own");
    raw_firestore_name_documents(self, url);
    self->headers = curl_slist_append(NULL, "Content-Type: application/json");
    self->headers = curl_slist_append(self->headers, "Authorization: Bearer owner");
    snprintf(self->url[BATCH_GET], sizeof self->url[0], "http://%s/v1/%s:batchGet", self->host,
             self->documents);
    snprintf(self->url[COMMIT], sizeof self->url[1], "http://%s/v1/%s:commit", self->host,
             self->documents);
    curl_easy_setopt(self->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(self->easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(self->easy, CURLOPT_HTTPHEADER, self->headers);
    curl_easy_setopt(self->easy, CURLOPT_WRITEFUNCTION, raw_firestore_collect);
    curl_easy_setopt(self->easy, CURLOPT_WRITEDATA, self);
    return self;
}

static void raw_firestore_close(void *raw)
{
    plain *self = raw;
    curl_easy_cleanup(self->easy);
    curl_slist_free_all(self->headers);
    free(self);
}

static void raw_firestore_perform(plain *self)
{
    self->length = 0;
    self->answer[0] = '\0';
    if (curl_easy_perform(self->easy) != CURLE_OK)
        bench_die("plain libcurl", "no answer");
    long status = 0;
    curl_easy_getinfo(self->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        bench_die("plain libcurl", self->answer);
}

static void raw_firestore_post(plain *self, int which, const char *body)
{
    curl_easy_setopt(self->easy, CURLOPT_URL, self->url[which]);
    curl_easy_setopt(self->easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(self->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    raw_firestore_perform(self);
}

/* Copies the text after the last "updateTime": " of the answer. */
static bool raw_firestore_update_time(const plain *self, char out[64])
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

static void raw_firestore_pair(void *raw, const char *key)
{
    plain *self = raw;
    char body[4096];
    long long now = (long long)time(NULL) * 1000;
    int round = ++self->round;
    snprintf(body, sizeof body, "{\"documents\":[\"%s/%s/%s\",\"%s/%s/fence:%s\"]}",
             self->documents, self->locks, key, self->documents, self->fences, key);
    raw_firestore_post(self, 0, body);
    char condition[128] = "\"exists\":false";
    char counter_time[64];
    if (raw_firestore_update_time(self, counter_time))
        snprintf(condition, sizeof condition, "\"updateTime\":\"%s\"", counter_time);
    snprintf(body, sizeof body,
             "{\"writes\":[{\"update\":{\"name\":\"%s/%s/%s\",\"fields\":{"
             "\"lockId\":{\"stringValue\":\"AAAAAAAAAAAAAAAAAAAAAA\"},"
             "\"key\":{\"stringValue\":\"%s\"},\"fence\":{\"stringValue\":\"%015d\"},"
             "\"expiresAtMs\":{\"integerValue\":\"%lld\"},"
             "\"acquiredAtMs\":{\"integerValue\":\"%lld\"}}},"
             "\"currentDocument\":{\"exists\":false}},"
             "{\"update\":{\"name\":\"%s/%s/fence:%s\",\"fields\":{"
             "\"fence\":{\"stringValue\":\"%015d\"},\"keyDebug\":{\"stringValue\":\"%s\"}}},"
             "\"currentDocument\":{%s}}]}",
             self->documents, self->locks, key, key, round, now + 30000, now, self->documents,
             self->fences, key, round, key, condition);
    raw_firestore_post(self, 1, body);
    char lock_time[64];
    if (!raw_firestore_update_time(self, lock_time))
        bench_die("plain libcurl", "no updateTime");
    snprintf(body, sizeof body,
             "{\"writes\":[{\"delete\":\"%s/%s/%s\",\"currentDocument\":"
             "{\"updateTime\":\"%s\"}}]}",
             self->documents, self->locks, key, lock_time);
    raw_firestore_post(self, 1, body);
}

/* ---- our place ---- */

static void raw_firestore_place_url(const char *url, const char *name, char *out, size_t size)
{
    char fences[BENCH_NAME_SIZE + 32], step[BENCH_URL_SIZE];
    snprintf(fences, sizeof fences, "%s_fences", name);
    bench_set_option(url, "collection", name, step, sizeof step);
    bench_set_option(step, "fence_collection", fences, out, size);
}

/* Removes a page of a collection; false: the collection is empty. */
static bool raw_firestore_remove_page(plain *self, const char *collection)
{
    static const char head[] = "\"name\": \"";
    static char body[MOST_ANSWER];
    char url[2048];
    const char *at = self->answer;
    snprintf(url, sizeof url, "http://%s/v1/%s/%s?pageSize=%d&mask.fieldPaths=__name__", self->host,
             self->documents, collection, PAGE);
    curl_easy_setopt(self->easy, CURLOPT_URL, url);
    curl_easy_setopt(self->easy, CURLOPT_HTTPGET, 1L);
    raw_firestore_perform(self);
    size_t used = (size_t)snprintf(body, sizeof body, "{\"writes\":[");
    int count = 0;
    while ((at = strstr(at, head)) != NULL && used + 2048 < sizeof body) {
        at += sizeof head - 1;
        used += (size_t)snprintf(body + used, sizeof body - used, "%s{\"delete\":\"%.*s\"}",
                                 count++ > 0 ? "," : "", (int)strcspn(at, "\""), at);
    }
    snprintf(body + used, sizeof body - used, "]}");
    if (count > 0)
        raw_firestore_post(self, COMMIT, body);
    return count > 0;
}

static void raw_firestore_clear(const char *url)
{
    plain *self = raw_firestore_open(url);
    while (raw_firestore_remove_page(self, self->locks) ||
           raw_firestore_remove_page(self, self->fences))
        ;
    raw_firestore_close(self);
}

const bench_raw bench_raw_firestore = {
    .name = "firestore",
    .scheme = "firestore:",
    .client = "plain libcurl, same requests",
    .variants = {{"pair", NULL, 1.1}},
    .open = raw_firestore_open,
    .close = raw_firestore_close,
    .pair = raw_firestore_pair,
    .most_connections = 32, /* max_connections */
    .rate_bar = 0.9,
    .rate_threads = 16,
    .conflict_free = true,
    .round_trip_name = "plain libcurl pair",
    .turns = 20,
    .place = raw_firestore_place_url,
    .clear = raw_firestore_clear,
    .remembers = 3000,
};
