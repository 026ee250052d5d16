/*
 * Credentials: where they come from, and the access token that they buy.
 *
 * Order: an emulator needs none; the token callback; the credentials option; the file named by
 * GOOGLE_APPLICATION_CREDENTIALS; gcloud's application default file; the metadata server. Files
 * are read once, at open.
 *
 * A token is shared by all callers and counted. Early renewal is done by one caller while the
 * others go on with the old token; when that has run out they wait for the one. Secrets are wiped
 * where they are freed and never reach a message.
 *
 * Locking: auth->mutex guards token, renewing and retry_at_ns; the gate lets one renewal run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"
#include "syncguard/sys/environment.h"

#define MAX_FILE_BYTES (64 * 1024)
#define MAX_TOKEN_BYTES 8192
#define NS_PER_S INT64_C(1000000000)
#define RETRY_NS (10 * NS_PER_S)
#define EARLY_NS (1 * NS_PER_S) /* that an early renewal may take at most */
#define HEADER "Authorization: Bearer "
#define GOOGLE_TOKEN_URI "https://oauth2.googleapis.com/token"

void sg_fs_wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    syncguard_free(text);
}

/* jansson frees strings as they are: wipes one before that. */
static void wipe_json(const json_t *value)
{
    const char *text = json_string_value(value);

    if (text)
        explicit_bzero((void *)(uintptr_t)text, json_string_length(value));
}

/* --- files --- */

/* NULL: errno tells why. */
static char *read_whole(const char *path, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    struct stat about;
    size_t at = 0;

    if (fd < 0)
        return NULL;
    errno = EINVAL;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= MAX_FILE_BYTES) {
        text = syncguard_calloc(1, MAX_FILE_BYTES + 1);
        errno = ENOMEM;
    }
    while (text && at < MAX_FILE_BYTES) {
        ssize_t n = read(fd, text + at, MAX_FILE_BYTES - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    (void)close(fd);
    *length = at;
    return text;
}

static char *copy_field(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));

    return text && text[0] ? syncguard_strdup(text) : NULL;
}

static bool token_uri_safe(const char *uri)
{
    if (strncasecmp(uri, "https://", 8) == 0)
        return true;
    return strncasecmp(uri, "http://", 7) == 0 && sg_fs_url_loopback(uri);
}

static syncguard_status take_json(fs_auth *auth, const json_t *json, syncguard_error *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    auth->token_uri = copy_field(json, "token_uri");
    if (!auth->token_uri)
        auth->token_uri = syncguard_strdup(GOOGLE_TOKEN_URI);
    if (!auth->token_uri)
        return syncguard_fail_memory(err);
    if (!token_uri_safe(auth->token_uri))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "token_uri of the credentials file is neither https nor loopback");
    if (type && strcmp(type, "service_account") == 0) {
        auth->kind = FS_AUTH_SERVICE_ACCOUNT;
        auth->client = copy_field(json, "client_email");
        auth->key_id = copy_field(json, "private_key_id");
        auth->secret = copy_field(json, "private_key");
        if (auth->client && auth->secret)
            return SYNCGUARD_OK;
    } else if (type && strcmp(type, "authorized_user") == 0) {
        auth->kind = FS_AUTH_USER;
        auth->client = copy_field(json, "client_id");
        auth->secret = copy_field(json, "client_secret");
        auth->refresh_token = copy_field(json, "refresh_token");
        if (auth->client && auth->secret && auth->refresh_token)
            return SYNCGUARD_OK;
    } else {
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the credentials file is of no known type "
                              "(service_account, authorized_user)");
    }
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the credentials file lacks a field of its type");
}

/* source names the option or variable in messages; the path itself is not shown. */
static syncguard_status take_file(fs_auth *auth, const char *path, const char *source,
                                  syncguard_error *err)
{
    size_t length = 0;
    char *text = read_whole(path, &length);
    int error = errno;
    json_t *json = text ? json_loadb(text, length, 0, NULL) : NULL;
    syncguard_status status;

    if (!text && (error == EMFILE || error == ENFILE))
        status = syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EMFILE",
                                "no file descriptor is left for the credentials file");
    else if (!text && error == ENOMEM)
        status = syncguard_fail_memory(err);
    else if (!text)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "the credentials file given by %s cannot be read", source);
    else if (!json)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "the credentials file given by %s is no JSON", source);
    else
        status = take_json(auth, json, err);
    wipe_json(json_object_get(json, "private_key"));
    wipe_json(json_object_get(json, "client_secret"));
    wipe_json(json_object_get(json, "refresh_token"));
    json_decref(json);
    if (text)
        explicit_bzero(text, length);
    syncguard_free(text);
    return status;
}

static bool default_file(char *path, size_t size)
{
    const char *folder = syncguard_environment("CLOUDSDK_CONFIG");
    const char *home = syncguard_environment("HOME");
    int n;

    if (folder)
        n = snprintf(path, size, "%s/application_default_credentials.json", folder);
    else if (home)
        n = snprintf(path, size, "%s/.config/gcloud/application_default_credentials.json", home);
    else
        return false;
    return n > 0 && (size_t)n < size && access(path, R_OK) == 0;
}

static syncguard_status take_metadata(fs_auth *auth, syncguard_error *err)
{
    static const char path[] = "/computeMetadata/v1/instance/service-accounts/default/token";
    const char *host = syncguard_environment("GCE_METADATA_HOST");
    char url[512];
    int n;

    if (!host)
        host = "metadata.google.internal";
    n = snprintf(url, sizeof url, "http://%s%s", host, path);
    if (n < 0 || (size_t)n >= sizeof url || strcspn(host, "/?#@ ") != strlen(host))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "GCE_METADATA_HOST is no host");
    auth->kind = FS_AUTH_METADATA;
    auth->token_uri = syncguard_strdup(url);
    return auth->token_uri ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

static syncguard_status find_source(fs_auth *auth, const syncguard_firestore_options *options,
                                    bool emulator, syncguard_error *err)
{
    const char *named = syncguard_environment("GOOGLE_APPLICATION_CREDENTIALS");
    char path[4096];

    if (emulator) {
        auth->kind = FS_AUTH_EMULATOR;
        return SYNCGUARD_OK;
    }
    if (options->token) {
        auth->kind = FS_AUTH_CALLBACK;
        auth->callback = options->token;
        auth->callback_context = options->token_context;
        return SYNCGUARD_OK;
    }
    if (options->credentials_file)
        return take_file(auth, options->credentials_file, "option credentials", err);
    if (named)
        return take_file(auth, named, "GOOGLE_APPLICATION_CREDENTIALS", err);
    if (default_file(path, sizeof path))
        return take_file(auth, path, "gcloud's default", err);
    return take_metadata(auth, err);
}

syncguard_status sg_fs_auth_init(fs_auth *auth, const syncguard_firestore_options *options,
                                 bool emulator, syncguard_error *err)
{
    syncguard_status status;

    memset(auth, 0, sizeof *auth);
    status = find_source(auth, options, emulator, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_auth_after_fork(auth, err);
    if (status != SYNCGUARD_OK)
        sg_fs_auth_destroy(auth);
    return status;
}

syncguard_status sg_fs_auth_after_fork(fs_auth *auth, syncguard_error *err)
{
    syncguard_status status = syncguard_gate_init(&auth->gate, 1, err);

    if (status != SYNCGUARD_OK)
        return status;
    if (pthread_mutex_init(&auth->mutex, NULL) != 0) {
        syncguard_gate_destroy(&auth->gate);
        return syncguard_fail_memory(err);
    }
    auth->renewing = false;
    auth->ready = true;
    return SYNCGUARD_OK;
}

void sg_fs_auth_destroy(fs_auth *auth)
{
    sg_fs_token_drop(auth->token);
    auth->token = NULL;
    if (auth->ready) {
        pthread_mutex_destroy(&auth->mutex);
        syncguard_gate_destroy(&auth->gate);
    }
    auth->ready = false;
    sg_fs_wipe(auth->token_uri);
    sg_fs_wipe(auth->client);
    sg_fs_wipe(auth->key_id);
    sg_fs_wipe(auth->secret);
    sg_fs_wipe(auth->refresh_token);
    auth->token_uri = auth->client = auth->key_id = auth->secret = auth->refresh_token = NULL;
}

/* --- tokens --- */

void sg_fs_token_drop(fs_token *token)
{
    if (token && atomic_fetch_sub(&token->references, 1) == 1) {
        explicit_bzero(token->header, strlen(token->header));
        syncguard_free(token);
    }
}

/* lifetime_ms counts from start_ns, when the token was asked for. */
static fs_token *make_token(const char *text, int64_t lifetime_ms, int64_t start_ns)
{
    size_t length = strlen(text);
    fs_token *token = syncguard_malloc(sizeof *token + sizeof HEADER + length);
    int64_t lifetime_ns;

    if (!token)
        return NULL;
    if (lifetime_ms < 0)
        lifetime_ms = 0;
    if (lifetime_ms > INT64_C(86400000))
        lifetime_ms = INT64_C(86400000);
    lifetime_ns = lifetime_ms * SYNCGUARD_NS_PER_MS;
    atomic_init(&token->references, 1);
    /* Renewed in its last five minutes (or fifth), not used in its last ten seconds (or tenth). */
    token->renew_at_ns = start_ns + lifetime_ns -
                         (lifetime_ns / 5 < 300 * NS_PER_S ? lifetime_ns / 5 : 300 * NS_PER_S);
    token->expires_at_ns = start_ns + lifetime_ns -
                           (lifetime_ns / 10 < 10 * NS_PER_S ? lifetime_ns / 10 : 10 * NS_PER_S);
    memcpy(token->header, HEADER, sizeof HEADER - 1);
    memcpy(token->header + sizeof HEADER - 1, text, length + 1);
    return token;
}

/* Only what may stand in a header line. */
static bool token_text_valid(const char *text)
{
    size_t length = text ? strlen(text) : 0;

    if (length == 0 || length > MAX_TOKEN_BYTES)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    }
    return true;
}

static syncguard_status read_token(const fs_reply *reply, fs_token **out, syncguard_error *err)
{
    json_t *json = NULL;
    const json_t *text;
    const json_t *seconds;
    syncguard_status status = SYNCGUARD_OK;
    char native[32];

    if (reply->status != 200) {
        (void)snprintf(native, sizeof native, "HTTP_%ld", reply->status);
        /* A broken endpoint is as good as none; one that says no has judged the credentials. */
        return syncguard_fail(
            err, reply->status >= 500 ? SYNCGUARD_E_SERVICE_UNAVAILABLE : SYNCGUARD_E_AUTH_FAILED,
            native, "the token endpoint answered HTTP %ld", reply->status);
    }
    json = reply->length ? json_loadb(reply->body, reply->length, 0, NULL) : NULL;
    text = json_object_get(json, "access_token");
    seconds = json_object_get(json, "expires_in");
    if (!token_text_valid(json_string_value(text)) || !json_is_number(seconds)) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "the token endpoint's answer holds no usable token");
    } else {
        double lifetime = json_number_value(seconds);
        if (!(lifetime > 0 && lifetime < 86400))
            lifetime = lifetime > 0 ? 86400 : 0;
        *out = make_token(json_string_value(text), (int64_t)(lifetime * 1000), reply->start_ns);
        if (!*out)
            status = syncguard_fail_memory(err);
    }
    wipe_json(text);
    json_decref(json);
    return status;
}

static char *form_encode(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t length = strlen(text);
    char *out = syncguard_malloc(length * 3 + 1);
    size_t at = 0;

    for (size_t i = 0; out && i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            c == '-' || c == '_' || c == '.') {
            out[at++] = (char)c;
        } else {
            out[at++] = '%';
            out[at++] = hex[c >> 4];
            out[at++] = hex[c & 15];
        }
    }
    if (out)
        out[at] = '\0';
    return out;
}

static char *user_form(const fs_auth *auth)
{
    char *id = form_encode(auth->client);
    char *secret = form_encode(auth->secret);
    char *refresh = form_encode(auth->refresh_token);
    char *body = NULL;

    if (id && secret && refresh) {
        size_t size = strlen(id) + strlen(secret) + strlen(refresh) + 96;
        body = syncguard_malloc(size);
        if (body)
            (void)snprintf(body, size,
                           "grant_type=refresh_token&client_id=%s&client_secret=%s"
                           "&refresh_token=%s",
                           id, secret, refresh);
    }
    sg_fs_wipe(id);
    sg_fs_wipe(secret);
    sg_fs_wipe(refresh);
    return body;
}

static syncguard_status service_form(const fs_auth *auth, char **body, syncguard_error *err)
{
    static const char start[] =
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
    char *jwt = NULL;
    syncguard_status status = sg_fs_jwt(auth->client, auth->key_id, auth->secret, auth->token_uri,
                                        syncguard_wall_ms() / 1000, &jwt, err);

    if (status != SYNCGUARD_OK)
        return status;
    size_t size = sizeof start + strlen(jwt);
    *body = syncguard_malloc(size);
    if (*body)
        (void)snprintf(*body, size, "%s%s", start, jwt);
    else
        status = syncguard_fail_memory(err);
    sg_fs_wipe(jwt);
    return status;
}

static syncguard_status fetch_over_http(const fs_auth *auth, fs_pool *pool,
                                        const syncguard_limits *limits, fs_token **out,
                                        syncguard_error *err)
{
    fs_request request = {auth->token_uri, NULL, 0, {NULL, NULL, NULL}, false};
    syncguard_status status = SYNCGUARD_OK;
    char *body = NULL;
    fs_reply reply;

    if (auth->kind == FS_AUTH_METADATA) {
        request.headers[0] = "Metadata-Flavor: Google";
        request.direct = true;
    } else {
        request.headers[0] = "Content-Type: application/x-www-form-urlencoded";
        request.direct = sg_fs_url_loopback(auth->token_uri);
        if (auth->kind == FS_AUTH_USER)
            body = user_form(auth);
        else
            status = service_form(auth, &body, err);
        if (status == SYNCGUARD_OK && !body)
            status = syncguard_fail_memory(err);
        if (status != SYNCGUARD_OK)
            return status;
        request.body = body;
        request.body_length = strlen(body);
    }
    status = sg_fs_transfer(pool, &request, limits, &reply, err);
    if (status == SYNCGUARD_OK)
        status = read_token(&reply, out, err);
    else if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && auth->kind == FS_AUTH_METADATA)
        status = syncguard_fail(err, status, err ? err->native : NULL,
                                "no credentials are configured and no metadata server answers");
    sg_fs_reply_free(&reply);
    sg_fs_wipe(body);
    return status;
}

static syncguard_status fetch_from_callback(const fs_auth *auth, const syncguard_limits *limits,
                                            fs_token **out, syncguard_error *err)
{
    char buffer[MAX_TOKEN_BYTES + 1] = "";
    int64_t start_ns = syncguard_clock_ns();
    int64_t left_ms = syncguard_limits_left_ns(limits) / SYNCGUARD_NS_PER_MS;
    int64_t lifetime_ms = 0;
    syncguard_status status;

    syncguard_error_clear(err);
    status = auth->callback(auth->callback_context, left_ms, limits->abort_object, buffer,
                            sizeof buffer, &lifetime_ms, err);
    buffer[sizeof buffer - 1] = '\0';
    if (status > SYNCGUARD_OK)
        status = SYNCGUARD_E_AUTH_FAILED;
    if (status != SYNCGUARD_OK) {
        if (err && err->code != status)
            status = syncguard_fail(err, status, NULL, "the token callback failed");
    } else if (!token_text_valid(buffer)) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "the token callback gave no usable token");
    } else {
        *out = make_token(buffer, lifetime_ms, start_ns);
        if (!*out)
            status = syncguard_fail_memory(err);
    }
    explicit_bzero(buffer, sizeof buffer);
    return status;
}

static syncguard_status fetch(const fs_auth *auth, fs_pool *pool, const syncguard_limits *limits,
                              fs_token **out, syncguard_error *err)
{
    switch (auth->kind) {
    case FS_AUTH_EMULATOR:
        /* What Google's own clients send; a day is as good as ever. */
        *out = make_token("owner", INT64_C(86400000), syncguard_clock_ns());
        return *out ? SYNCGUARD_OK : syncguard_fail_memory(err);
    case FS_AUTH_CALLBACK:
        return fetch_from_callback(auth, limits, out, err);
    case FS_AUTH_SERVICE_ACCOUNT:
    case FS_AUTH_USER:
    case FS_AUTH_METADATA:
        break;
    }
    return fetch_over_http(auth, pool, limits, out, err);
}

/*
 * The shared token if it will do: fresh, or still good while somebody else renews it or the last
 * early renewal failed a moment ago. Otherwise NULL, and the caller is to renew; the first one to
 * hear that of a token that is still good (until *claimed_ns, else 0) is the one that the others
 * need not wait for.
 */
static fs_token *usable(fs_auth *auth, int64_t *claimed_ns)
{
    int64_t now = syncguard_clock_ns();
    fs_token *token;

    pthread_mutex_lock(&auth->mutex);
    token = auth->token;
    if (token && now >= token->renew_at_ns) {
        if (now >= token->expires_at_ns) {
            token = NULL;
        } else if (!auth->renewing && now >= auth->retry_at_ns) {
            auth->renewing = true;
            *claimed_ns = token->expires_at_ns;
            token = NULL;
        }
    }
    if (token)
        atomic_fetch_add(&token->references, 1);
    pthread_mutex_unlock(&auth->mutex);
    return token;
}

/* Inside the gate: the token that whoever was here before has brought. */
static fs_token *brought(fs_auth *auth)
{
    int64_t now = syncguard_clock_ns();
    fs_token *token;

    pthread_mutex_lock(&auth->mutex);
    token = auth->token && now < auth->token->renew_at_ns ? auth->token : NULL;
    if (token)
        atomic_fetch_add(&token->references, 1);
    pthread_mutex_unlock(&auth->mutex);
    return token;
}

static void unclaim(fs_auth *auth)
{
    pthread_mutex_lock(&auth->mutex);
    auth->renewing = false;
    pthread_mutex_unlock(&auth->mutex);
}

/* Ends a renewal; fresh is NULL if it failed. Returns the old token if that is still good. */
static fs_token *settle(fs_auth *auth, fs_token *fresh)
{
    int64_t now = syncguard_clock_ns();
    fs_token *old;
    fs_token *fallback = NULL;

    pthread_mutex_lock(&auth->mutex);
    old = auth->token;
    if (fresh) {
        auth->token = fresh;
        atomic_fetch_add(&fresh->references, 1);
        auth->retry_at_ns = 0;
    } else if (old && now < old->expires_at_ns) {
        fallback = old;
        atomic_fetch_add(&old->references, 1);
        auth->retry_at_ns = now + RETRY_NS;
        old = NULL;
    } else {
        old = NULL;
    }
    pthread_mutex_unlock(&auth->mutex);
    sg_fs_token_drop(old);
    return fallback;
}

/* An endpoint that hangs must leave time for the operation, and the old token good for it. */
static syncguard_limits early_limits(const syncguard_limits *limits, int64_t good_until_ns)
{
    int64_t now = syncguard_clock_ns();
    int64_t most = syncguard_limits_left_ns(limits) / 4;

    if (most > EARLY_NS)
        most = EARLY_NS;
    if (most > (good_until_ns - now) / 2)
        most = (good_until_ns - now) / 2;
    return syncguard_limits_until(limits, now + most);
}

static syncguard_status renew(fs_auth *auth, fs_pool *pool, const syncguard_limits *limits,
                              fs_token **out, syncguard_error *err)
{
    fs_token *fresh = NULL;
    syncguard_status status = syncguard_gate_enter(&auth->gate, limits, err);

    if (status != SYNCGUARD_OK)
        return status;
    *out = brought(auth);
    if (!*out) {
        status = fetch(auth, pool, limits, &fresh, err);
        *out = settle(auth, fresh);
        if (fresh)
            *out = fresh;
        else if (*out)
            status = SYNCGUARD_OK;
    }
    syncguard_gate_leave(&auth->gate);
    return status;
}

syncguard_status sg_fs_auth_get(fs_auth *auth, fs_pool *pool, const syncguard_limits *limits,
                                fs_token **out, syncguard_error *err)
{
    int64_t claimed_ns = 0;

    *out = usable(auth, &claimed_ns);
    if (*out)
        return SYNCGUARD_OK;
    if (claimed_ns != 0) {
        syncguard_limits early = early_limits(limits, claimed_ns);
        syncguard_status status = renew(auth, pool, &early, out, err);
        unclaim(auth);
        if (status == SYNCGUARD_OK || syncguard_limits_check(limits, NULL) != SYNCGUARD_OK)
            return status;
        /* The old token has been refused meanwhile: now a new one is worth all the time. */
    }
    return renew(auth, pool, limits, out, err);
}

void sg_fs_auth_refused(fs_auth *auth, const fs_token *token)
{
    fs_token *old = NULL;

    if (auth->kind == FS_AUTH_EMULATOR)
        return;
    pthread_mutex_lock(&auth->mutex);
    if (auth->token == token) {
        old = auth->token;
        auth->token = NULL;
    }
    pthread_mutex_unlock(&auth->mutex);
    sg_fs_token_drop(old);
}
