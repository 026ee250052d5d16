/*
 * Access tokens. A token is shared by all callers and reference-counted. One caller renews it early
 * while the others go on with the old one; once that has expired, they wait for the renewal.
 * Secrets are wiped where they are freed and never reach a message.
 *
 * Locking: tokens->mutex guards the token and the state of its renewal and is a leaf; the gate lets
 * one renewal run.
 */
#include "token.h"

#include <stdio.h>
#include <string.h>

#include "text.h"

#define MAX_TOKEN_BYTES 8192
#define MAX_LIFETIME_MS INT64_C(86400000)
#define NS_PER_S INT64_C(1000000000)
#define RETRY_NS (10 * NS_PER_S)
#define EARLY_NS (1 * NS_PER_S) /* that an early renewal may take at most */
#define HEADER "Authorization: Bearer "

/* ---- one token ---- */

void sg_firestore_token_drop(sg_firestore_token *token)
{
    if (token != NULL && atomic_fetch_sub(&token->references, 1) == 1) {
        explicit_bzero(token->header, strlen(token->header));
        syncguard_free(token);
    }
}

static int64_t token_min_int64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* lifetime_ms counts from start_ns, when the token was asked for. */
static sg_firestore_token *token_create(const char *text, int64_t lifetime_ms, int64_t start_ns)
{
    size_t length = strlen(text);
    sg_firestore_token *token = syncguard_malloc(sizeof *token + sizeof HEADER + length);
    if (token == NULL)
        return NULL;
    int64_t lifetime_ns =
        lifetime_ms > 0 ? token_min_int64(lifetime_ms, MAX_LIFETIME_MS) * SYNCGUARD_NS_PER_MS : 0;
    atomic_init(&token->references, 1);
    /* Renewed in its last five minutes (or fifth), not used in its last ten seconds (or tenth). */
    token->renew_at_ns = start_ns + lifetime_ns - token_min_int64(lifetime_ns / 5, 300 * NS_PER_S);
    token->expires_at_ns =
        start_ns + lifetime_ns - token_min_int64(lifetime_ns / 10, 10 * NS_PER_S);
    memcpy(token->header, HEADER, sizeof HEADER - 1);
    memcpy(token->header + sizeof HEADER - 1, text, length + 1);
    return token;
}

/* Whether the text may stand in a header line. */
static bool token_text_valid(const char *text)
{
    size_t length = text != NULL ? strlen(text) : 0;
    if (length == 0 || length > MAX_TOKEN_BYTES)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    }
    return true;
}

/* ---- fetching ---- */

static syncguard_status token_read_reply(const sg_firestore_reply *reply, sg_firestore_token **out,
                                         syncguard_error *err)
{
    char native[32];
    if (reply->status != 200) {
        (void)snprintf(native, sizeof native, "HTTP_%ld", reply->status);
        /* A broken endpoint counts as unavailable. One that refuses has checked the credentials. */
        return syncguard_fail(
            err, reply->status >= 500 ? SYNCGUARD_E_SERVICE_UNAVAILABLE : SYNCGUARD_E_AUTH_FAILED,
            native, "the token endpoint answered HTTP %ld", reply->status);
    }
    json_t *json = reply->length != 0 ? json_loadb(reply->body, reply->length, 0, NULL) : NULL;
    const json_t *text = json_object_get(json, "access_token");
    const json_t *seconds = json_object_get(json, "expires_in");
    syncguard_status status = SYNCGUARD_OK;
    if (!token_text_valid(json_string_value(text)) || !json_is_number(seconds)) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "the token endpoint's answer holds no usable token");
    } else {
        double lifetime = json_number_value(seconds);
        if (!(lifetime > 0 && lifetime < 86400))
            lifetime = lifetime > 0 ? 86400 : 0;
        *out = token_create(json_string_value(text), (int64_t)(lifetime * 1000), reply->start_ns);
        if (*out == NULL)
            status = syncguard_fail_memory(err);
    }
    sg_firestore_json_wipe(text);
    json_decref(json);
    return status;
}

/* NULL without memory. */
static char *token_user_form(const sg_firestore_credentials *c)
{
    char *id = sg_firestore_percent_encode(c->client, "");
    char *secret = sg_firestore_percent_encode(c->secret, "");
    char *refresh = sg_firestore_percent_encode(c->refresh_token, "");
    char *body = NULL;
    if (id != NULL && secret != NULL && refresh != NULL)
        body = sg_firestore_format("grant_type=refresh_token&client_id=%s&client_secret=%s"
                                   "&refresh_token=%s",
                                   id, secret, refresh);
    syncguard_free_secret(id);
    syncguard_free_secret(secret);
    syncguard_free_secret(refresh);
    return body;
}

static syncguard_status token_service_form(const sg_firestore_credentials *c, char **body,
                                           syncguard_error *err)
{
    char *jwt = NULL;
    syncguard_status status = sg_firestore_jwt(c->client, c->key_id, c->secret, c->token_uri,
                                               syncguard_wall_ms() / 1000, &jwt, err);
    if (status != SYNCGUARD_OK)
        return status;
    *body = sg_firestore_format(
        "grant_type=urn%%3Aietf%%3Aparams%%3Aoauth%%3Agrant-type%%3Ajwt-bearer&assertion=%s", jwt);
    syncguard_free_secret(jwt);
    return SYNCGUARD_OK;
}

static syncguard_status token_fetch_over_http(const sg_firestore_credentials *c,
                                              sg_firestore_pool *pool,
                                              const syncguard_limits *limits,
                                              sg_firestore_token **out, syncguard_error *err)
{
    sg_firestore_http_request request = {c->token_uri, NULL, 0, {NULL, NULL}, false};
    syncguard_status status = SYNCGUARD_OK;
    char *body = NULL;
    if (c->kind == SG_FIRESTORE_METADATA) {
        request.headers[0] = "Metadata-Flavor: Google";
        request.direct = true;
    } else {
        request.headers[0] = "Content-Type: application/x-www-form-urlencoded";
        request.direct = sg_firestore_url_loopback(c->token_uri);
        if (c->kind == SG_FIRESTORE_USER)
            body = token_user_form(c);
        else
            status = token_service_form(c, &body, err);
        if (status == SYNCGUARD_OK && body == NULL)
            status = syncguard_fail_memory(err);
        if (status != SYNCGUARD_OK)
            return status;
        request.body = body;
        request.body_length = strlen(body);
    }
    sg_firestore_reply reply;
    status = sg_firestore_transfer(pool, &request, limits, &reply, err);
    if (status == SYNCGUARD_OK)
        status = token_read_reply(&reply, out, err);
    else if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && c->kind == SG_FIRESTORE_METADATA)
        status = syncguard_fail(err, status, err != NULL ? err->native : NULL,
                                "no credentials are configured and no metadata server answers");
    sg_firestore_reply_free(&reply);
    syncguard_free_secret(body);
    return status;
}

static syncguard_status token_fetch_from_callback(const sg_firestore_credentials *c,
                                                  const syncguard_limits *limits,
                                                  sg_firestore_token **out, syncguard_error *err)
{
    int64_t start_ns = syncguard_clock_ns();
    int64_t left_ms = syncguard_limits_left_ns(limits) / SYNCGUARD_NS_PER_MS;
    syncguard_error_clear(err);
    char buffer[MAX_TOKEN_BYTES + 1] = "";
    int64_t lifetime_ms = 0;
    syncguard_status status = c->callback(c->callback_context, left_ms, limits->abort_object,
                                          buffer, sizeof buffer, &lifetime_ms, err);
    buffer[sizeof buffer - 1] = '\0';
    if (status > SYNCGUARD_OK)
        status = SYNCGUARD_E_AUTH_FAILED;
    if (status != SYNCGUARD_OK) {
        if (err != NULL && err->code != status)
            status = syncguard_fail(err, status, NULL, "the token callback failed");
    } else if (!token_text_valid(buffer)) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "the token callback gave no usable token");
    } else {
        *out = token_create(buffer, lifetime_ms, start_ns);
        if (*out == NULL)
            status = syncguard_fail_memory(err);
    }
    explicit_bzero(buffer, sizeof buffer);
    return status;
}

static syncguard_status token_fetch(const sg_firestore_credentials *c, sg_firestore_pool *pool,
                                    const syncguard_limits *limits, sg_firestore_token **out,
                                    syncguard_error *err)
{
    if (c->kind == SG_FIRESTORE_CALLBACK)
        return token_fetch_from_callback(c, limits, out, err);
    if (c->kind != SG_FIRESTORE_EMULATOR)
        return token_fetch_over_http(c, pool, limits, out, err);
    /* Google's own clients send this token to an emulator. */
    *out = token_create("owner", MAX_LIFETIME_MS, syncguard_clock_ns());
    return *out != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

/* ---- the shared token ---- */

syncguard_status sg_firestore_tokens_init(sg_firestore_tokens *tokens,
                                          const sg_firestore_credentials *credentials,
                                          syncguard_error *err)
{
    memset(tokens, 0, sizeof *tokens);
    tokens->credentials = credentials;
    return sg_firestore_tokens_after_fork(tokens, err);
}

syncguard_status sg_firestore_tokens_after_fork(sg_firestore_tokens *tokens, syncguard_error *err)
{
    syncguard_status status = syncguard_gate_init(&tokens->gate, 1, err);
    if (status == SYNCGUARD_OK && pthread_mutex_init(&tokens->mutex, NULL) != 0) {
        syncguard_gate_destroy(&tokens->gate);
        status = syncguard_fail_memory(err);
    }
    tokens->renewing = false;
    return status;
}

void sg_firestore_tokens_destroy(sg_firestore_tokens *tokens)
{
    sg_firestore_token_drop(tokens->token);
    pthread_mutex_destroy(&tokens->mutex);
    syncguard_gate_destroy(&tokens->gate);
}

/* With the mutex held. */
static sg_firestore_token *token_share(sg_firestore_token *token)
{
    if (token != NULL)
        atomic_fetch_add(&token->references, 1);
    return token;
}

/*
 * The shared token if it is usable: fresh, or still valid while another caller renews it or shortly
 * after an early renewal has failed. Otherwise NULL, and the caller must renew it. The first
 * caller that gets NULL for a token that is still valid (until *good_until_ns, else 0) renews it
 * for the others, which go on with the old one.
 */
static sg_firestore_token *token_share_usable(sg_firestore_tokens *tokens, int64_t *good_until_ns)
{
    int64_t now = syncguard_clock_ns();
    *good_until_ns = 0;
    pthread_mutex_lock(&tokens->mutex);
    sg_firestore_token *token = tokens->token;
    if (token != NULL && now >= token->expires_at_ns) {
        token = NULL;
    } else if (token != NULL && now >= token->renew_at_ns && !tokens->renewing &&
               now >= tokens->retry_at_ns) {
        tokens->renewing = true;
        *good_until_ns = token->expires_at_ns;
        token = NULL;
    }
    token = token_share(token);
    pthread_mutex_unlock(&tokens->mutex);
    return token;
}

/* Inside the gate: the token that another caller has fetched meanwhile. */
static sg_firestore_token *token_share_fresh(sg_firestore_tokens *tokens)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&tokens->mutex);
    sg_firestore_token *token = tokens->token;
    token = token_share(token != NULL && now < token->renew_at_ns ? token : NULL);
    pthread_mutex_unlock(&tokens->mutex);
    return token;
}

static void token_replace(sg_firestore_tokens *tokens, sg_firestore_token *fresh)
{
    pthread_mutex_lock(&tokens->mutex);
    sg_firestore_token *old = tokens->token;
    tokens->token = token_share(fresh);
    tokens->retry_at_ns = 0;
    pthread_mutex_unlock(&tokens->mutex);
    sg_firestore_token_drop(old);
}

/* After a failed renewal: the old token if it is still valid, else NULL. */
static sg_firestore_token *token_share_old(sg_firestore_tokens *tokens)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&tokens->mutex);
    sg_firestore_token *token = tokens->token;
    token = token_share(token != NULL && now < token->expires_at_ns ? token : NULL);
    if (token != NULL)
        tokens->retry_at_ns = now + RETRY_NS;
    pthread_mutex_unlock(&tokens->mutex);
    return token;
}

/* An endpoint that hangs must leave time for the operation, with the old token still valid. */
static syncguard_limits token_early_limits(const syncguard_limits *limits, int64_t good_until_ns)
{
    int64_t now = syncguard_clock_ns();
    int64_t most = token_min_int64(syncguard_limits_left_ns(limits) / 4, EARLY_NS);
    return syncguard_limits_until(limits, now + token_min_int64(most, (good_until_ns - now) / 2));
}

static syncguard_status token_renew(sg_firestore_tokens *tokens, sg_firestore_pool *pool,
                                    const syncguard_limits *limits, sg_firestore_token **out,
                                    syncguard_error *err)
{
    syncguard_status status = syncguard_gate_enter(&tokens->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    *out = token_share_fresh(tokens);
    if (*out == NULL) {
        status = token_fetch(tokens->credentials, pool, limits, out, err);
        if (status == SYNCGUARD_OK)
            token_replace(tokens, *out);
        else
            *out = token_share_old(tokens);
    }
    syncguard_gate_leave(&tokens->gate);
    return *out != NULL ? SYNCGUARD_OK : status;
}

syncguard_status sg_firestore_tokens_get(sg_firestore_tokens *tokens, sg_firestore_pool *pool,
                                         const syncguard_limits *limits, sg_firestore_token **out,
                                         syncguard_error *err)
{
    int64_t good_until_ns;
    *out = token_share_usable(tokens, &good_until_ns);
    if (*out != NULL)
        return SYNCGUARD_OK;
    if (good_until_ns != 0) {
        syncguard_limits early = token_early_limits(limits, good_until_ns);
        syncguard_status status = token_renew(tokens, pool, &early, out, err);
        pthread_mutex_lock(&tokens->mutex);
        tokens->renewing = false;
        pthread_mutex_unlock(&tokens->mutex);
        if (status == SYNCGUARD_OK || syncguard_limits_check(limits, NULL) != SYNCGUARD_OK)
            return status;
        /* The old token has been refused meanwhile, so the renewal may take all the time that is
         * left. */
    }
    return token_renew(tokens, pool, limits, out, err);
}

void sg_firestore_tokens_refused(sg_firestore_tokens *tokens, const sg_firestore_token *token)
{
    if (tokens->credentials->kind == SG_FIRESTORE_EMULATOR)
        return;
    pthread_mutex_lock(&tokens->mutex);
    sg_firestore_token *old = NULL;
    if (tokens->token == token) {
        old = tokens->token;
        tokens->token = NULL;
    }
    pthread_mutex_unlock(&tokens->mutex);
    sg_firestore_token_drop(old);
}
