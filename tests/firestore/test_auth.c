/*
 * Credentials: every source and their order, the lifetime of the token, the status of each failure,
 * and that no secret reaches a message. TLS: verified, with a CA of the caller's choice, HTTP/2
 * offered.
 */
#include "support.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "backends/firestore/backend.h"

static char folder[64];
static char key_file[128];
static char cert_file[128];
static char account_file[128];
static char user_file[128];
static char endpoint[64];

/* All messages of all tests, in which the last test searches for secrets. */
static char messages[65536];

static void keep_message(const char *text)
{
    size_t length = strlen(messages);
    snprintf(messages + length, sizeof messages - length, "%s\n", text);
}

static void write_json(const char *path, json_t *json)
{
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
}

static char *auth_file_read(const char *path)
{
    static char text[8192];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    return text;
}

static void write_account(const char *path, const char *token_uri)
{
    write_json(path, json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "type", "service_account", "project_id",
                               "test", "private_key_id", "key-number-7", "private_key",
                               auth_file_read(key_file), "client_email", "robot@test.iam",
                               "token_uri", token_uri));
}

static void write_user(const char *path, const char *token_uri)
{
    write_json(path, json_pack("{s:s,s:s,s:s,s:s,s:s}", "type", "authorized_user", "client_id",
                               "client&id", "client_secret", "s3cret+word", "refresh_token",
                               "refresh/word", "token_uri", token_uri));
}

static int auth_setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/syncguard-auth-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(key_file, sizeof key_file, "%s/key.pem", folder);
    snprintf(cert_file, sizeof cert_file, "%s/cert.pem", folder);
    snprintf(account_file, sizeof account_file, "%s/account.json", folder);
    snprintf(user_file, sizeof user_file, "%s/application_default_credentials.json", folder);
    char command[512];
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=fake-server "
             "-addext subjectAltName=IP:127.0.0.1 -keyout %s -out %s 2>/dev/null",
             key_file, cert_file);
    assert_int_equal(system(command), 0);
    fake_server_start(&server, NULL);
    snprintf(endpoint, sizeof endpoint, "http://%s", server.host);
    char uri[64];
    snprintf(uri, sizeof uri, "http://%s/token", server.host);
    write_account(account_file, uri);
    write_user(user_file, uri);
    return 0;
}

static int auth_teardown(void **state)
{
    (void)state;
    fake_server_stop(&server);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    return 0;
}

static int auth_environment_reset(void **state)
{
    (void)state;
    unsetenv("FIRESTORE_EMULATOR_HOST");
    unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
    setenv("CLOUDSDK_CONFIG", "/does/not/exist", 1);
    setenv("GCE_METADATA_HOST", server.host, 1);
    fake_server_reset(&server);
    return 0;
}

static void keep_log(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    (void)level;
    keep_message(message);
}

static syncguard_status auth_backend_open_with(const char *credentials,
                                               syncguard_firestore_token_fn token, void *context,
                                               syncguard_backend **out)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = keep_log;
    options.dispose_timeout_ms = 1;
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.endpoint = endpoint;
    own.credentials_file = credentials;
    own.token = token;
    own.token_context = context;
    syncguard_status status = syncguard_firestore_open(&own, &options, out, &err);
    keep_message(err.message);
    return status;
}

static syncguard_backend *auth_backend_open(const char *credentials)
{
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, auth_backend_open_with(credentials, NULL, NULL, &backend));
    return backend;
}

static syncguard_status auth_ask(syncguard_backend *backend)
{
    bool locked;
    syncguard_status status = syncguard_is_locked(backend, "k", NULL, &locked, &err);
    keep_message(err.message);
    return status;
}

/* The field of the last request of this kind. */
static void last_of(const char *call, const char *field, char *out, size_t size)
{
    json_t *log = fake_server_control(&server, "GET", "log", NULL);
    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(log); i++) {
        const json_t *item = json_array_get(log, i);
        const char *its = json_string_value(json_object_get(item, "call"));
        const char *text = json_string_value(json_object_get(item, field));
        if (its != NULL && strcmp(its, call) == 0)
            snprintf(out, size, "%s", text != NULL ? text : "");
    }
    json_decref(log);
}

/* ---- service accounts ---- */

static size_t auth_base64url_decode(const char *text, size_t length, unsigned char *out)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint32_t bits = 0;
    int count = 0;
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        bits = bits << 6 | (uint32_t)(strchr(alphabet, text[i]) - alphabet);
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[at++] = (unsigned char)(bits >> count);
        }
    }
    out[at] = '\0';
    return at;
}

static void check_signature(const char *jwt, const char *end_of_claims)
{
    FILE *file = fopen(key_file, "r");
    EVP_PKEY *key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned char signature[1024];
    size_t length = auth_base64url_decode(end_of_claims + 1, strlen(end_of_claims + 1), signature);
    fclose(file);
    assert_non_null(key);
    assert_int_equal(EVP_DigestVerifyInit(context, NULL, EVP_sha256(), NULL, key), 1);
    assert_int_equal(EVP_DigestVerify(context, signature, length, (const unsigned char *)jwt,
                                      (size_t)(end_of_claims - jwt)),
                     1);
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
}

static void service_account(void **state)
{
    syncguard_backend *mine = auth_backend_open(account_file);
    (void)state;
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(fake_server_calls(&server, "token"), 1);
    char body[8192];
    last_of("token", "body", body, sizeof body);
    const char *jwt = strstr(body, "&assertion=");
    assert_non_null(jwt);
    assert_non_null(
        strstr(body, "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer"));
    jwt += strlen("&assertion=");
    const char *first_dot = strchr(jwt, '.');
    const char *second_dot = strchr(first_dot + 1, '.');
    check_signature(jwt, second_dot);
    unsigned char text[4096];
    auth_base64url_decode(jwt, (size_t)(first_dot - jwt), text);
    assert_non_null(strstr((char *)text, "\"alg\":\"RS256\""));
    assert_non_null(strstr((char *)text, "\"kid\":\"key-number-7\""));
    auth_base64url_decode(first_dot + 1, (size_t)(second_dot - first_dot - 1), text);
    json_t *claims = json_loads((char *)text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(claims, "iss")), "robot@test.iam");
    assert_string_equal(json_string_value(json_object_get(claims, "scope")),
                        "https://www.googleapis.com/auth/datastore");
    assert_int_equal(json_integer_value(json_object_get(claims, "exp")) -
                         json_integer_value(json_object_get(claims, "iat")),
                     3600);
    json_decref(claims);
    char authorization[256];
    last_of("batchGet", "authorization", authorization, sizeof authorization);
    assert_non_null(strstr(authorization, "Bearer fake_server-token-"));
    syncguard_close(mine);
}

static void user_with_refresh_token(void **state)
{
    syncguard_backend *mine = auth_backend_open(user_file);
    (void)state;
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    char body[1024];
    last_of("token", "body", body, sizeof body);
    assert_string_equal(body, "grant_type=refresh_token&client_id=client%26id"
                              "&client_secret=s3cret%2Bword&refresh_token=refresh%2Fword");
    syncguard_close(mine);
}

static void metadata_server(void **state)
{
    syncguard_backend *mine = auth_backend_open(NULL);
    (void)state;
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(fake_server_calls(&server, "metadata"), 1);
    char flavor[64];
    last_of("metadata", "flavor", flavor, sizeof flavor);
    assert_string_equal(flavor, "Google");
    syncguard_close(mine);
}

typedef struct giver {
    atomic_int asked;
    syncguard_status answer;
    const char *token;
    int64_t lifetime_ms;
} giver;

static syncguard_status auth_token_give(void *context, int64_t timeout_ms,
                                        syncguard_abort *abort_object, char *buffer, size_t size,
                                        int64_t *lifetime_ms, syncguard_error *error)
{
    giver *g = context;
    (void)abort_object;
    (void)error;
    assert_true(timeout_ms > 0);
    atomic_fetch_add(&g->asked, 1);
    if (g->token != NULL)
        snprintf(buffer, size, "%s", g->token);
    *lifetime_ms = g->lifetime_ms;
    return g->answer;
}

static void token_callback(void **state)
{
    (void)state;
    giver g = {0, SYNCGUARD_OK, "called-token", 3600000};
    syncguard_backend *mine = NULL;
    assert_status(SYNCGUARD_OK, auth_backend_open_with(account_file, auth_token_give, &g, &mine));
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(atomic_load(&g.asked), 1);
    char authorization[256];
    last_of("batchGet", "authorization", authorization, sizeof authorization);
    assert_string_equal(authorization, "Bearer called-token");
    syncguard_close(mine);
    g.answer = SYNCGUARD_E_RATE_LIMITED;
    assert_status(SYNCGUARD_OK, auth_backend_open_with(NULL, auth_token_give, &g, &mine));
    assert_status(SYNCGUARD_E_RATE_LIMITED, auth_ask(mine));
    g.answer = SYNCGUARD_OK;
    g.token = "two\r\nlines: of header";
    assert_status(SYNCGUARD_E_AUTH_FAILED, auth_ask(mine));
    g.token = "";
    assert_status(SYNCGUARD_E_AUTH_FAILED, auth_ask(mine));
    syncguard_close(mine);
}

/* Emulator, callback, option, variable, gcloud's file, metadata: the first that is there. */
static void order_of_sources(void **state)
{
    (void)state;
    setenv("CLOUDSDK_CONFIG", folder, 1);
    syncguard_backend *mine = auth_backend_open(NULL);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    char body[8192];
    last_of("token", "body", body, sizeof body);
    assert_non_null(strstr(body, "refresh_token"));
    syncguard_close(mine);
    setenv("GOOGLE_APPLICATION_CREDENTIALS", account_file, 1);
    mine = auth_backend_open(NULL);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    last_of("token", "body", body, sizeof body);
    assert_non_null(strstr(body, "assertion"));
    syncguard_close(mine);
    mine = auth_backend_open(user_file);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    last_of("token", "body", body, sizeof body);
    assert_non_null(strstr(body, "refresh_token"));
    syncguard_close(mine);
    setenv("FIRESTORE_EMULATOR_HOST", server.host, 1);
    fake_server_forget(&server);
    mine = auth_backend_open(user_file);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(fake_server_calls(&server, "token"), 0);
    last_of("batchGet", "authorization", body, sizeof body);
    assert_string_equal(body, "Bearer owner");
    syncguard_close(mine);
}

static void unusable_files(void **state)
{
    static const char *const texts[] = {
        "",
        "no json",
        "[]",
        "{}",
        "{\"type\":\"external_account\"}",
        "{\"type\":\"service_account\",\"client_email\":\"a\"}",
        "{\"type\":\"authorized_user\",\"client_id\":\"a\",\"client_secret\":\"b\"}",
        "{\"type\":\"authorized_user\",\"client_id\":\"a\",\"client_secret\":\"b\","
        "\"refresh_token\":\"c\",\"token_uri\":\"http://example.com/token\"}",
    };
    (void)state;
    syncguard_backend *mine = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  auth_backend_open_with("/does/not/exist", NULL, NULL, &mine));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, auth_backend_open_with(folder, NULL, NULL, &mine));
    char path[128];
    snprintf(path, sizeof path, "%s/bad.json", folder);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        FILE *file = fopen(path, "w");
        fputs(texts[i], file);
        fclose(file);
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      auth_backend_open_with(path, NULL, NULL, &mine));
    }
    setenv("GOOGLE_APPLICATION_CREDENTIALS", "/does/not/exist", 1);
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, auth_backend_open_with(NULL, NULL, NULL, &mine));
    assert_non_null(strstr(err.message, "GOOGLE_APPLICATION_CREDENTIALS"));
}

static void unusable_key(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/nokey.json", folder);
    char uri[64];
    snprintf(uri, sizeof uri, "http://%s/token", server.host);
    write_json(path, json_pack("{s:s,s:s,s:s,s:s}", "type", "service_account", "client_email", "a",
                               "private_key", "-----BEGIN NONSENSE-----", "token_uri", uri));
    syncguard_backend *mine = auth_backend_open(path);
    assert_status(SYNCGUARD_E_AUTH_FAILED, auth_ask(mine));
    syncguard_close(mine);
}

/* ---- the token's life ---- */

static void auth_rule_set(const char *call, const char *rest)
{
    char text[512];
    snprintf(text, sizeof text, "[{\"on\":\"%s\",\"times\":-1,%s}]", call, rest);
    fake_server_rules(&server, text);
}

static void failures_of_the_endpoint(void **state)
{
    static const struct {
        const char *rest;
        syncguard_status wanted;
    } cases[] = {
        {"\"do\":\"body\",\"http\":400,\"body\":\"{\\\"error\\\":\\\"invalid_grant\\\"}\"",
         SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"http\":401,\"body\":\"\"", SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"http\":403,\"body\":\"no\"", SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"http\":404,\"body\":\"no\"", SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"http\":302,\"body\":\"\"", SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"http\":500,\"body\":\"\"", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"\"do\":\"body\",\"http\":503,\"body\":\"\"", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"\"do\":\"body\",\"body\":\"garbage\"", SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"body\":\"{\\\"access_token\\\":7}\"", SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"body\",\"body\":\"{\\\"access_token\\\":\\\"a b\\\",\\\"expires_in\\\":60}\"",
         SYNCGUARD_E_AUTH_FAILED},
        {"\"do\":\"reset_before\"", SYNCGUARD_E_SERVICE_UNAVAILABLE},
    };
    const char *const files[] = {account_file, user_file, NULL};
    (void)state;
    for (size_t source = 0; source < 3; source++) {
        syncguard_backend *mine = auth_backend_open(files[source]);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            auth_rule_set(files[source] != NULL ? "token" : "metadata", cases[i].rest);
            assert_status(cases[i].wanted, auth_ask(mine));
        }
        fake_server_rules(&server, "[]");
        assert_status(SYNCGUARD_OK, auth_ask(mine));
        syncguard_close(mine);
    }
}

static void no_endpoint_at_all(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/nobody.json", folder);
    write_account(path, "http://127.0.0.1:9/token");
    syncguard_backend *mine = auth_backend_open(path);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, auth_ask(mine));
    syncguard_close(mine);
    setenv("GCE_METADATA_HOST", "127.0.0.1:9", 1);
    mine = auth_backend_open(NULL);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, auth_ask(mine));
    syncguard_close(mine);
}

static void endpoint_that_hangs(void **state)
{
    syncguard_backend *mine = auth_backend_open(account_file);
    int64_t before = test_now_ms();
    (void)state;
    auth_rule_set("token", "\"do\":\"hang\"");
    syncguard_call call = test_call(200);
    bool locked;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(mine, "k", &call, &locked, &err));
    assert_true(test_now_ms() - before < 1000);
    syncguard_close(mine);
}

/* libcurl closes the idle connection to the token's server when it finds it dead. The request is on
 * another connection, and needs no thread when it is given up. */
static void an_idle_connection_that_died(void **state)
{
    (void)state;
    fake_server tokens;
    memset(&tokens, 0, sizeof tokens);
    fake_server_start(&tokens, NULL);
    char path[128];
    snprintf(path, sizeof path, "%s/elsewhere.json", folder);
    char uri[64];
    snprintf(uri, sizeof uri, "http://%s/token", tokens.host);
    write_account(path, uri);
    syncguard_backend *mine = auth_backend_open(path);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    fake_server_stop(&tokens);
    test_sleep_ms(1500); /* libcurl checks for dead connections once a second */
    auth_rule_set("batchGet", "\"do\":\"hang\"");
    syncguard_call call = test_call(500);
    bool locked;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(mine, "k", &call, &locked, &err));
    assert_non_null(((sg_firestore_backend *)mine)->pool.handles.first);
    syncguard_close(mine);
}

static void *auth_ask_once(void *context)
{
    syncguard_error mine;
    bool locked;
    return syncguard_is_locked(context, "k", NULL, &locked, &mine) == SYNCGUARD_OK ? context : NULL;
}

static void one_thread_fetches_for_all(void **state)
{
    syncguard_backend *mine = auth_backend_open(account_file);
    (void)state;
    auth_rule_set("token", "\"do\":\"delay\",\"ms\":200");
    pthread_t threads[12];
    for (size_t i = 0; i < 12; i++)
        threads[i] = test_start_thread(auth_ask_once, mine);
    void *good;
    for (size_t i = 0; i < 12; i++) {
        pthread_join(threads[i], &good);
        assert_non_null(good);
    }
    assert_int_equal(fake_server_calls(&server, "token"), 1);
    syncguard_close(mine);
}

static void renewed_before_it_ends(void **state)
{
    (void)state;
    json_decref(fake_server_control(&server, "PUT", "settings", "{\"lifetime_s\":1}"));
    syncguard_backend *mine = auth_backend_open(account_file);
    int64_t until = test_now_ms() + 2500;
    while (test_now_ms() < until) {
        assert_status(SYNCGUARD_OK, auth_ask(mine));
        test_sleep_ms(10);
    }
    assert_in_range(fake_server_calls(&server, "token"), 3, 5);
    syncguard_close(mine);
}

/* Makes the token older, as if it had been fetched that much earlier. Of its 100 s it is renewed
 * after 80 and not used after 90, so that a slow machine does not miss the time between. */
static void age_token(syncguard_backend *backend, int64_t ms)
{
    sg_firestore_tokens *tokens = &((sg_firestore_backend *)backend)->tokens;
    pthread_mutex_lock(&tokens->mutex);
    assert_non_null(tokens->token);
    tokens->token->renew_at_ns -= ms * SYNCGUARD_NS_PER_MS;
    tokens->token->expires_at_ns -= ms * SYNCGUARD_NS_PER_MS;
    pthread_mutex_unlock(&tokens->mutex);
}

static void early_renewal_may_fail(void **state)
{
    (void)state;
    json_decref(fake_server_control(&server, "PUT", "settings", "{\"lifetime_s\":100}"));
    syncguard_backend *mine = auth_backend_open(account_file);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    auth_rule_set("token", "\"do\":\"body\",\"http\":503,\"body\":\"\"");
    age_token(mine, 80500);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(fake_server_calls(&server, "token"), 2);
    age_token(mine, 10000);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, auth_ask(mine));
    syncguard_close(mine);
}

/* The old token is still valid, so the operation must not fail. */
static void early_renewal_may_hang(void **state)
{
    (void)state;
    json_decref(fake_server_control(&server, "PUT", "settings", "{\"lifetime_s\":100}"));
    syncguard_backend *mine = auth_backend_open(account_file);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    auth_rule_set("token", "\"do\":\"hang\"");
    age_token(mine, 88500); /* a second and a half left */
    int64_t before = test_now_ms();
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_true(test_now_ms() - before < 2000);
    assert_int_equal(fake_server_calls(&server, "token"), 2);
    syncguard_close(mine);
}

static void refused_token_is_replaced(void **state)
{
    syncguard_backend *mine = auth_backend_open(account_file);
    (void)state;
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"status\",\"http\":401,"
                               "\"status\":\"UNAUTHENTICATED\"}]");
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(fake_server_calls(&server, "token"), 2);
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"status\",\"http\":401,"
                               "\"status\":\"UNAUTHENTICATED\",\"times\":-1}]");
    assert_status(SYNCGUARD_E_AUTH_FAILED, auth_ask(mine));
    syncguard_close(mine);
}

/* ---- TLS ---- */

static syncguard_status ask_over_tls(const fake_server *secure, const char *ca_file)
{
    char url[64];
    snprintf(url, sizeof url, "https://%s", secure->host);
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.endpoint = url;
    own.ca_file = ca_file;
    own.token = auth_token_give;
    giver g = {0, SYNCGUARD_OK, "called-token", 3600000};
    own.token_context = &g;
    syncguard_backend *mine = NULL;
    assert_status(SYNCGUARD_OK, syncguard_firestore_open(&own, NULL, &mine, &err));
    syncguard_status status = auth_ask(mine);
    syncguard_close(mine);
    return status;
}

static void certificates_are_verified(void **state)
{
    const char *const arguments[] = {"--cert", cert_file, "--key", key_file, NULL};
    (void)state;
    fake_server secure;
    fake_server_start(&secure, arguments);
    secure.tls = true;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, ask_over_tls(&secure, NULL));
    assert_string_equal(err.native, "CURLE_60");
    assert_int_equal(fake_server_calls(&secure, "batchGet"), 0);
    assert_status(SYNCGUARD_OK, ask_over_tls(&secure, cert_file));
    assert_int_equal(fake_server_calls(&secure, "batchGet"), 1);
    fake_server_stop(&secure);
}

static void http2_is_spoken(void **state)
{
    const char *const arguments[] = {"--cert", cert_file, "--key", key_file, "--alpn", "h2", NULL};
    (void)state;
    fake_server secure;
    fake_server_start(&secure, arguments);
    secure.tls = true;
    assert_true(ask_over_tls(&secure, cert_file) < 0);
    assert_true(fake_server_calls(&secure, "http2") >= 1);
    fake_server_stop(&secure);
}

/* The fake server is the proxy in libcurl's environment: it answers requests for another server
 * itself. */
static void proxies_of_the_environment(void **state)
{
    char real[sizeof endpoint];
    (void)state;
    memcpy(real, endpoint, sizeof real);
    snprintf(endpoint, sizeof endpoint, "http://localhost:9");
    setenv("http_proxy", real, 1);
    giver g = {0, SYNCGUARD_OK, "called-token", 3600000};
    syncguard_backend *mine = NULL;
    assert_status(SYNCGUARD_OK, auth_backend_open_with(NULL, auth_token_give, &g, &mine));
    memcpy(endpoint, real, sizeof real);
    assert_status(SYNCGUARD_OK, auth_ask(mine));
    assert_int_equal(fake_server_calls(&server, "batchGet"), 1);
    unsetenv("http_proxy");
    syncguard_close(mine);
}

/* A proxy that refuses has answered: its code is reported, and the request is not repeated. */
static void refusals_of_a_proxy(void **state)
{
    static const struct {
        int http;
        syncguard_status status;
    } cases[] = {{407, SYNCGUARD_E_AUTH_FAILED},
                 {403, SYNCGUARD_E_SERVICE_UNAVAILABLE},
                 {503, SYNCGUARD_E_SERVICE_UNAVAILABLE}};
    char real[sizeof endpoint];
    (void)state;
    memcpy(real, endpoint, sizeof real);
    snprintf(endpoint, sizeof endpoint, "https://firestore.invalid");
    setenv("https_proxy", real, 1);
    giver g = {0, SYNCGUARD_OK, "called-token", 3600000};
    for (size_t i = 0; i < 3; i++) {
        syncguard_backend *mine = NULL;
        char more[32];
        fake_server_forget(&server);
        assert_status(SYNCGUARD_OK, auth_backend_open_with(NULL, auth_token_give, &g, &mine));
        snprintf(more, sizeof more, "\"do\":\"status\",\"http\":%d", cases[i].http);
        auth_rule_set("CONNECT", more);
        assert_status(cases[i].status, auth_ask(mine));
        char native[16];
        snprintf(native, sizeof native, "HTTP_%d", cases[i].http);
        assert_string_equal(err.native, native);
        assert_int_equal(fake_server_calls(&server, "CONNECT"), 1);
        syncguard_close(mine);
    }
    memcpy(endpoint, real, sizeof real);
    unsetenv("https_proxy");
}

static void no_message_holds_a_secret(void **state)
{
    static const char *const secrets[] = {"fake_server-token", "called-token", "s3cret",
                                          "refresh/word",      "PRIVATE",      "robot@test",
                                          "client&id",         "eyJ"};
    (void)state;
    assert_true(strlen(messages) > 100);
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++)
        assert_null(strstr(messages, secrets[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(service_account, auth_environment_reset),
        cmocka_unit_test_setup(user_with_refresh_token, auth_environment_reset),
        cmocka_unit_test_setup(metadata_server, auth_environment_reset),
        cmocka_unit_test_setup(token_callback, auth_environment_reset),
        cmocka_unit_test_setup(order_of_sources, auth_environment_reset),
        cmocka_unit_test_setup(unusable_files, auth_environment_reset),
        cmocka_unit_test_setup(unusable_key, auth_environment_reset),
        cmocka_unit_test_setup(failures_of_the_endpoint, auth_environment_reset),
        cmocka_unit_test_setup(no_endpoint_at_all, auth_environment_reset),
        cmocka_unit_test_setup(endpoint_that_hangs, auth_environment_reset),
        cmocka_unit_test_setup(an_idle_connection_that_died, auth_environment_reset),
        cmocka_unit_test_setup(one_thread_fetches_for_all, auth_environment_reset),
        cmocka_unit_test_setup(renewed_before_it_ends, auth_environment_reset),
        cmocka_unit_test_setup(early_renewal_may_fail, auth_environment_reset),
        cmocka_unit_test_setup(early_renewal_may_hang, auth_environment_reset),
        cmocka_unit_test_setup(refused_token_is_replaced, auth_environment_reset),
        cmocka_unit_test_setup(certificates_are_verified, auth_environment_reset),
        cmocka_unit_test_setup(http2_is_spoken, auth_environment_reset),
        cmocka_unit_test_setup(proxies_of_the_environment, auth_environment_reset),
        cmocka_unit_test_setup(refusals_of_a_proxy, auth_environment_reset),
        cmocka_unit_test(no_message_holds_a_secret),
    };
    return cmocka_run_group_tests(tests, auth_setup, auth_teardown);
}
