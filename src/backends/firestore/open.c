/*
 * Opening: typed options, the URL, the module. Everything is checked here, and nothing is sent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "internal.h"
#include "syncguard/sys/environment.h"
#include "syncguard/sys/options.h"
#include "syncguard/sys/url.h"

#define MAX_BASE_URL 512

extern const syncguard_module syncguard_module_firestore;

void syncguard_firestore_options_init(syncguard_firestore_options *options, size_t size)
{
    static const syncguard_firestore_options defaults = SYNCGUARD_FIRESTORE_OPTIONS_INIT;

    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

void syncguard_firestore_clock_info_init(syncguard_firestore_clock_info *info, size_t size)
{
    static const syncguard_firestore_clock_info defaults = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;

    syncguard_struct_init(info, size, &defaults, sizeof defaults);
}

/* Host, port and path only: no user info, no query, nothing that could split a header. */
static bool plain_url_part(const char *text, const char *extra)
{
    size_t length = strlen(text);

    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              strchr(extra, c)))
            return false;
    }
    return length > 0 && length < MAX_BASE_URL - 16;
}

/* An emulator is reached without TLS and without credentials. */
static syncguard_status check_contradictions(const syncguard_firestore_options *options,
                                             syncguard_error *err)
{
    const char *other = options->endpoint           ? "endpoint"
                        : options->credentials_file ? "credentials"
                        : options->token            ? "token"
                        : options->ca_file          ? "ca_file"
                                                    : NULL;

    if (options->emulator_host && options->emulator_host[0] && other)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "options emulator_host and %s contradict each other", other);
    return SYNCGUARD_OK;
}

/* The base URL without a trailing slash. */
static syncguard_status find_base_url(const syncguard_firestore_options *options,
                                      char out[MAX_BASE_URL], bool *emulator, syncguard_error *err)
{
    const char *host = options->emulator_host;
    const char *source = "option emulator_host";
    const char *endpoint =
        options->endpoint ? options->endpoint : "https://firestore.googleapis.com";
    bool https = strncasecmp(endpoint, "https://", 8) == 0;
    bool http = strncasecmp(endpoint, "http://", 7) == 0;
    size_t length;

    if (!host) {
        host = syncguard_environment("FIRESTORE_EMULATOR_HOST");
        source = "FIRESTORE_EMULATOR_HOST";
    }
    *emulator = host && host[0];
    if (*emulator) {
        if (strncmp(host, "http://", 7) == 0)
            host += 7;
        if (!plain_url_part(host, "-._:[]"))
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s is no HOST:PORT",
                                  source);
        (void)snprintf(out, MAX_BASE_URL, "http://%s", host);
        /* Nothing is encrypted, and nobody proves who he is. */
        if (!options->emulator_any_host && !sg_fs_url_loopback(out))
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "%s is not a loopback address (option emulator_any_host allows "
                                  "others)",
                                  source);
        return SYNCGUARD_OK;
    }
    if (!(https || http) || !plain_url_part(endpoint, "-._:[]/"))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option endpoint is no https URL of a server");
    if (http && !sg_fs_url_loopback(endpoint))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option endpoint must be https, or a loopback address");
    (void)snprintf(out, MAX_BASE_URL, "%s", endpoint);
    length = strlen(out);
    while (length > 0 && out[length - 1] == '/')
        out[--length] = '\0';
    return SYNCGUARD_OK;
}

static syncguard_status check_numbers(const syncguard_firestore_options *options,
                                      syncguard_error *err)
{
    if (options->max_connections < 0 || options->max_connections > FS_MAX_CONNECTIONS)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option max_connections is not within 0 to %d", FS_MAX_CONNECTIONS);
    if (options->max_clock_drift_ms < 0 || options->max_clock_drift_ms > INT64_C(86400000))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option max_clock_drift_ms is not within 0 to 86400000");
    return SYNCGUARD_OK;
}

/* Everything but the base; undone part by part on failure. */
static syncguard_status build(fs_backend *b, const syncguard_firestore_options *options,
                              syncguard_error *err)
{
    char base_url[MAX_BASE_URL];
    bool emulator = false;
    syncguard_status status;

    status = check_numbers(options, err);
    if (status == SYNCGUARD_OK)
        status = check_contradictions(options, err);
    if (status == SYNCGUARD_OK)
        status = find_base_url(options, base_url, &emulator, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_names_init(&b->names, options, base_url, err);
    if (status != SYNCGUARD_OK)
        return status;
    b->pid = getpid();
    b->max_clock_drift_ms = options->max_clock_drift_ms;
    b->connections = options->max_connections ? options->max_connections : FS_DEFAULT_CONNECTIONS;
    status = sg_fs_auth_init(&b->auth, options, emulator, err);
    if (status != SYNCGUARD_OK)
        goto no_auth;
    status = sg_fs_clock_init(&b->clock, err);
    if (status != SYNCGUARD_OK)
        goto no_clock;
    status = sg_fs_memo_init(&b->memo, err);
    if (status != SYNCGUARD_OK)
        goto no_memo;
    status = sg_fs_pool_init(&b->pool, b->connections, options->ca_file,
                             strncasecmp(base_url, "https:", 6) == 0, err);
    if (status == SYNCGUARD_OK)
        return status;
    sg_fs_memo_destroy(&b->memo);
no_memo:
    sg_fs_clock_destroy(&b->clock);
no_clock:
    sg_fs_auth_destroy(&b->auth);
no_auth:
    sg_fs_names_destroy(&b->names);
    return status;
}

syncguard_status syncguard_firestore_open(const syncguard_firestore_options *firestore_options,
                                          const syncguard_options *options, syncguard_backend **out,
                                          syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    static const syncguard_capabilities capabilities = {"firestore", true, SYNCGUARD_TIME_CLIENT};
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    syncguard_options common;
    fs_backend *b;
    syncguard_status status;

    syncguard_error_clear(err);
    if (!out)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    status = syncguard_struct_read(firestore_options, &own, sizeof own,
                                   offsetof(syncguard_firestore_options, emulator_any_host),
                                   "firestore options", err);
    if (status == SYNCGUARD_OK)
        status = syncguard_options_read(options, &common, err);
    if (status != SYNCGUARD_OK)
        return status;
    b = syncguard_calloc(1, sizeof *b);
    if (!b)
        return syncguard_fail_memory(err);
    status = build(b, &own, err);
    if (status != SYNCGUARD_OK) {
        syncguard_free(b);
        return status;
    }
    status = syncguard_backend_init(&b->base, &sg_fs_ops, &capabilities, &common, err);
    if (status != SYNCGUARD_OK) {
        sg_fs_dismantle(b);
        syncguard_free(b);
        return status;
    }
    *out = &b->base;
    return SYNCGUARD_OK;
}

syncguard_status syncguard_firestore_clock(syncguard_backend *backend,
                                           syncguard_firestore_clock_info *info,
                                           syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_firestore_clock_info now = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    fs_instant at = sg_fs_now();

    syncguard_error_clear(err);
    if (!backend || backend->ops != &sg_fs_ops || !info || info->size < sizeof *info)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "no handle of the firestore backend, or no struct of known size");
    if (!sg_fs_clock_read(&((fs_backend *)backend)->clock, &at, &now))
        return SYNCGUARD_ABSENT;
    now.size = info->size;
    *info = now;
    return SYNCGUARD_OK;
}

/* --- the URL --- */

static syncguard_status read_url(syncguard_url *url, syncguard_firestore_options *own,
                                 syncguard_options *common, syncguard_error *err)
{
    int64_t connections = own->max_connections;
    syncguard_status status;

    if (url->user || url->password)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "a firestore URL has no user info");
    own->project = url->hosts;
    if (url->path[0] == '/' && url->path[1])
        own->database = url->path + 1;
    own->collection = syncguard_url_text(url, "collection");
    own->fence_collection = syncguard_url_text(url, "fence_collection");
    own->emulator_host = syncguard_url_text(url, "emulator_host");
    status = syncguard_url_bool(url, "emulator_any_host", &own->emulator_any_host, err);
    if (status != SYNCGUARD_OK)
        return status;
    own->endpoint = syncguard_url_text(url, "endpoint");
    own->credentials_file = syncguard_url_text(url, "credentials");
    own->ca_file = syncguard_url_text(url, "ca_file");
    status = syncguard_url_int(url, "max_connections", 1, FS_MAX_CONNECTIONS, &connections, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_int(url, "max_clock_drift_ms", 0, INT64_C(86400000),
                                   &own->max_clock_drift_ms, err);
    own->max_connections = (int32_t)connections;
    if (status == SYNCGUARD_OK)
        status = syncguard_url_common(url, common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    return status;
}

static syncguard_status module_open(const char *text, const syncguard_options *options,
                                    syncguard_backend **out, syncguard_error *err)
{
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    syncguard_options common;
    syncguard_url *url = NULL;
    syncguard_status status = syncguard_options_read(options, &common, err);

    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    if (status == SYNCGUARD_OK)
        status = read_url(url, &own, &common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_firestore_open(&own, &common, out, err);
    syncguard_url_free(url);
    return status;
}

static const char *const schemes[] = {"firestore", NULL};

SYNCGUARD_API const syncguard_module syncguard_module_firestore = {
    .abi = SYNCGUARD_ABI,
    .name = "firestore",
    .schemes = schemes,
    .open = module_open,
    .setup = NULL,
};

syncguard_status syncguard_firestore_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_firestore, err);
}
