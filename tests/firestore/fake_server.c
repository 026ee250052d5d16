/* See fake_server.h. */
#include "fake_server.h"

#include <curl/curl.h>

void fake_server_start(fake_server *server, const char *const *arguments)
{
    server->tls = false;
    servers_ask(&server->process, "fake_firestore", arguments);
    server->port = server->process.port;
    snprintf(server->host, sizeof server->host, "127.0.0.1:%d", server->port);
}

void fake_server_stop(fake_server *server)
{
    servers_change(&server->process, "end", NULL);
}

typedef struct text_buffer {
    char *data;
    size_t length;
} text_buffer;

static size_t fake_server_body_collect(char *data, size_t size, size_t count, void *context)
{
    text_buffer *buffer = context;
    char *longer = realloc(buffer->data, buffer->length + size * count + 1);
    if (longer == NULL)
        return 0;
    buffer->data = longer;
    memcpy(longer + buffer->length, data, size * count);
    buffer->length += size * count;
    longer[buffer->length] = '\0';
    return size * count;
}

json_t *fake_server_control(const fake_server *server, const char *method, const char *path,
                            const char *body)
{
    CURL *easy = curl_easy_init();
    char url[96];
    snprintf(url, sizeof url, "http%s://%s/_/%s", server->tls ? "s" : "", server->host, path);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 10000L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    if (body != NULL) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    }
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, fake_server_body_collect);
    text_buffer answer = {NULL, 0};
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
    assert_int_equal(curl_easy_perform(easy), CURLE_OK);
    curl_easy_cleanup(easy);
    json_t *json = json_loadb(answer.data, answer.length, JSON_ALLOW_NUL, NULL);
    free(answer.data);
    assert_non_null(json);
    return json;
}

void fake_server_rules(const fake_server *server, const char *rules)
{
    json_decref(fake_server_control(server, "PUT", "rules", rules));
}

void fake_server_forget(const fake_server *server)
{
    json_decref(fake_server_control(server, "DELETE", "log", NULL));
}

void fake_server_reset(const fake_server *server)
{
    json_t *all = fake_server_control(server, "GET", "documents", NULL);
    json_t *none = json_object();
    const char *name;
    json_t *value;
    json_object_foreach(all, name, value)
    {
        (void)value;
        json_object_set_new(none, name, json_null());
    }
    char *text = json_dumps(none, 0);
    json_decref(fake_server_control(server, "PUT", "documents", text));
    free(text);
    json_decref(none);
    json_decref(all);
    fake_server_rules(server, "[]");
    json_decref(fake_server_control(server, "PUT", "settings",
                                    "{\"read_time_ms\":0,\"date_ms\":null,\"lifetime_s\":3600,"
                                    "\"standstill_ms\":0,\"permissions\":null,"
                                    "\"indexes\":[\"lockId\"]}"));
    fake_server_forget(server);
}

size_t fake_server_calls(const fake_server *server, const char *call)
{
    json_t *log = fake_server_control(server, "GET", "log", NULL);
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(log); i++) {
        const char *its = json_string_value(json_object_get(json_array_get(log, i), "call"));
        if (call == NULL || (its != NULL && strcmp(its, call) == 0))
            count++;
    }
    json_decref(log);
    return count;
}

json_t *fake_server_document(const fake_server *server, const char *name)
{
    json_t *all = fake_server_control(server, "GET", "documents", NULL);
    char full[2048];
    snprintf(full, sizeof full, "%s%s", PREFIX, name);
    json_t *found = json_incref(json_object_get(all, full));
    json_decref(all);
    return found;
}

const char *fake_server_field(const json_t *document, const char *field)
{
    json_t *value = json_object_get(json_object_get(document, "fields"), field);
    const char *type;
    json_t *inner;
    json_object_foreach(value, type, inner)
    {
        if (json_is_string(inner))
            return json_string_value(inner);
    }
    return "";
}

void fake_server_plant(const fake_server *server, const char *id, const char *key,
                       const char *lock_id, int64_t expires_at_ms)
{
    char name[1024];
    snprintf(name, sizeof name, "%slocks/%s", PREFIX, id);
    char expires[32];
    snprintf(expires, sizeof expires, "%lld", (long long)expires_at_ms);
    char acquired[32];
    snprintf(acquired, sizeof acquired, "%lld", (long long)expires_at_ms - 1000);
    json_t *body =
        json_pack("{s:{s:{s:s},s:{s:s},s:{s:s},s:{s:s},s:{s:s}}}", name, "lockId", "stringValue",
                  lock_id, "key", "stringValue", key, "fence", "stringValue", "000000000000007",
                  "expiresAtMs", "integerValue", expires, "acquiredAtMs", "integerValue", acquired);
    char *text = json_dumps(body, 0);
    json_decref(fake_server_control(server, "PUT", "documents", text));
    free(text);
    json_decref(body);
}

syncguard_backend *fake_server_open(const fake_server *server, const syncguard_options *options)
{
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.emulator_host = server->host;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_firestore_open(&own, options, &backend, &err));
    return backend;
}

static void *fake_server_trigger_later(void *context)
{
    later *l = context;
    test_sleep_ms(l->after_ms);
    atomic_store(&l->triggered_ns, test_now_ns());
    syncguard_abort_trigger(l->abort_object);
    return NULL;
}

void later_start(later *l, int64_t after_ms)
{
    l->after_ms = after_ms;
    atomic_store(&l->triggered_ns, 0);
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&l->abort_object, &err));
    l->thread = test_start_thread(fake_server_trigger_later, l);
}

double later_end(later *l)
{
    int64_t now_ns = test_now_ns();
    pthread_join(l->thread, NULL);
    double since = (double)(now_ns - atomic_load(&l->triggered_ns)) / 1e6;
    syncguard_abort_free(l->abort_object);
    return since;
}

void log_book_write(void *context, syncguard_log_level level, const char *message)
{
    log_book *book = context;
    pthread_mutex_lock(&book->mutex);
    size_t length = strlen(book->text);
    snprintf(book->text + length, sizeof book->text - length, "%s\n", message);
    if (level >= SYNCGUARD_LOG_WARN)
        book->warnings++;
    pthread_mutex_unlock(&book->mutex);
}
