/*
 * Configuration: the typed options, the URL, and their checks. Everything that
 * can be known to be wrong is refused here, before anything is sent. Messages
 * name options, never their values.
 */
#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"
#include "syncguard/sys/options.h"

#define MAX_PREFIX 951 /* with a colon and a hash: 974, and the reserve of 26 */

static syncguard_status redis_options_refuse(syncguard_error *err, const char *option,
                                             const char *why)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s %s", option, why);
}

void syncguard_redis_options_init(syncguard_redis_options *options, size_t size)
{
    static const syncguard_redis_options defaults = SYNCGUARD_REDIS_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

/* ---- hosts ---- */

static syncguard_status redis_options_refuse_host(syncguard_error *err, size_t number,
                                                  const char *why)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "hosts, number %zu: %s", number,
                          why);
}

/* "host", "host:port", "[v6]", "[v6]:port" of `length` bytes; the `number`-th, from 1. */
static syncguard_status redis_options_parse_host(const char *text, size_t length, size_t number,
                                                 int port, sg_redis_address *out,
                                                 syncguard_error *err)
{
    static const char bad_port[] = "the port is not a number from 1 to 65535";
    const char *end = text + length;
    const char *name = text;
    const char *name_end = end;
    const char *colon = NULL;
    if (length > 0 && *text == '[') {
        const char *close = memchr(text, ']', length);
        if (close == NULL)
            return redis_options_refuse_host(err, number, "a bracket is not closed");
        name = text + 1;
        name_end = close;
        if (close + 1 < end)
            colon = close + 1;
    } else {
        colon = memchr(text, ':', length);
        if (colon != NULL)
            name_end = colon;
    }
    if (colon != NULL) {
        char digits[8];
        size_t n = (size_t)(end - colon - 1);
        if (*colon != ':' || n == 0 || n >= sizeof digits)
            return redis_options_refuse_host(err, number, bad_port);
        memcpy(digits, colon + 1, n);
        digits[n] = '\0';
        char *stop = NULL;
        long value = strtol(digits, &stop, 10);
        if (*stop != '\0' || value < 1 || value > 65535)
            return redis_options_refuse_host(err, number, bad_port);
        port = (int)value;
    }
    if (name == name_end || name_end - name > 253)
        return redis_options_refuse_host(err, number, "the name is empty or too long");
    out->host = syncguard_strndup(name, (size_t)(name_end - name));
    out->port = port;
    return out->host != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

static syncguard_status redis_options_read_hosts(const char *hosts, sg_redis_config *config,
                                                 syncguard_error *err)
{
    int port = config->mode == SYNCGUARD_REDIS_SENTINEL ? 26379 : 6379;
    const char *at = hosts != NULL && *hosts != '\0' ? hosts : "127.0.0.1";
    for (;;) {
        size_t length = strcspn(at, ",");
        if (config->seed_count == SG_REDIS_MAX_SEEDS)
            return redis_options_refuse(err, "hosts", "has too many names");
        syncguard_status status = redis_options_parse_host(at, length, config->seed_count + 1, port,
                                                           &config->seeds[config->seed_count], err);
        if (status != SYNCGUARD_OK)
            return status;
        config->seed_count++;
        if (at[length] == '\0')
            break;
        at += length + 1;
    }
    if (config->mode == SYNCGUARD_REDIS_SINGLE && config->seed_count > 1)
        return redis_options_refuse(err, "hosts", "may name one server only");
    return SYNCGUARD_OK;
}

static syncguard_status redis_options_read_address(const syncguard_redis_options *given,
                                                   sg_redis_config *config, syncguard_error *err)
{
    struct sockaddr_un limit;
    if (given->unix_path == NULL)
        return redis_options_read_hosts(given->hosts, config, err);
    if (config->mode != SYNCGUARD_REDIS_SINGLE || given->hosts != NULL)
        return redis_options_refuse(err, "unix_path",
                                    "goes with neither hosts, Sentinel nor Cluster");
    size_t length = strlen(given->unix_path);
    if (length == 0 || length >= sizeof limit.sun_path)
        return redis_options_refuse(err, "unix_path", "is empty or too long");
    config->seeds[0].host = syncguard_strdup(given->unix_path);
    config->seeds[0].port = 0;
    config->seed_count = 1;
    return config->seeds[0].host != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

/* ---- prefix ---- */

/* True if the part between the first { and the next } is not empty: the cluster's hash tag. */
static bool redis_options_has_hash_tag(const char *prefix)
{
    const char *open = strchr(prefix, '{');
    const char *close = open != NULL ? strchr(open, '}') : NULL;
    return close != NULL && close > open + 1;
}

static bool redis_options_ends_with(const char *text, size_t length, const char *end)
{
    size_t n = strlen(end);
    return length >= n && memcmp(text + length - n, end, n) == 0;
}

static syncguard_status redis_options_read_prefix(const char *given, sg_redis_config *config,
                                                  syncguard_error *err)
{
    bool cluster = config->mode == SYNCGUARD_REDIS_CLUSTER;
    if (given == NULL)
        given = cluster ? "{syncguard}" : "syncguard";
    size_t length = strnlen(given, SYNCGUARD_URL_MAX_BYTES);
    while (length > 0 && given[length - 1] == ':')
        length--;
    if (length == 0)
        return redis_options_refuse(err, "prefix", "must not be empty");
    if (length > MAX_PREFIX)
        return redis_options_refuse(err, "prefix", "is longer than 951 bytes");
    char *prefix = syncguard_strndup(given, length);
    if (prefix == NULL)
        return syncguard_fail_memory(err);
    config->prefix = prefix;
    config->prefix_length = length;
    /* Names are unhashed as long as the longest key leaves room for the reserve. */
    config->names_hashed = length + 1 + SYNCGUARD_MAX_KEY_BYTES + SYNCGUARD_REDIS_RESERVE_BYTES >
                           SYNCGUARD_REDIS_LIMIT_BYTES;
    config->index_hashed = length + sizeof ":id:" - 1 + SYNCGUARD_LOCK_ID_CHARS >
                           SYNCGUARD_REDIS_LIMIT_BYTES - SYNCGUARD_REDIS_RESERVE_BYTES;
    if (strstr(prefix, "fence:") != NULL || redis_options_ends_with(prefix, length, "fence"))
        return redis_options_refuse(err, "prefix",
                                    "must not contain \"fence:\" nor end in \"fence\"");
    if (redis_options_ends_with(prefix, length, ":id"))
        return redis_options_refuse(err, "prefix", "must not end in \":id\"");
    if (cluster && !redis_options_has_hash_tag(prefix))
        return redis_options_refuse(err, "prefix",
                                    "needs a hash tag on a Cluster, as in {syncguard}");
    return SYNCGUARD_OK;
}

/* ---- other options ---- */

static syncguard_status redis_options_copy_text(char **out, const char *text, size_t longest,
                                                const char *option, syncguard_error *err)
{
    if (text == NULL)
        return SYNCGUARD_OK;
    if (strnlen(text, longest + 1) > longest)
        return redis_options_refuse(err, option, "is too long");
    *out = syncguard_strdup(text);
    return *out != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

static syncguard_status redis_options_copy_all_texts(const syncguard_redis_options *given,
                                                     sg_redis_config *config, syncguard_error *err)
{
    const struct {
        char **out;
        const char *text;
        size_t longest;
        const char *option;
    } texts[] = {
        {&config->master_name, given->master_name, 255, "master_name"},
        {&config->user, given->user, 1024, "user"},
        {&config->password, given->password, 8192, "password"},
        {&config->sentinel_user, given->sentinel_user, 1024, "sentinel_user"},
        {&config->sentinel_password, given->sentinel_password, 8192, "sentinel_password"},
        {&config->client_name, given->client_name != NULL ? given->client_name : "syncguard", 255,
         "client_name"},
        {&config->tls_ca, given->tls_ca, 4096, "tls_ca"},
        {&config->tls_cert, given->tls_cert, 4096, "tls_cert"},
        {&config->tls_key, given->tls_key, 4096, "tls_key"},
        {&config->tls_server_name, given->tls_server_name, 253, "tls_server_name"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        syncguard_status status = redis_options_copy_text(texts[i].out, texts[i].text,
                                                          texts[i].longest, texts[i].option, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    for (const char *at = config->client_name; *at != '\0'; at++) {
        if (*at <= ' ' || *at > '~')
            return redis_options_refuse(err, "client_name",
                                        "may only have printable characters, no blanks");
    }
    return SYNCGUARD_OK;
}

static syncguard_status redis_options_read_numbers(const syncguard_redis_options *given,
                                                   sg_redis_config *config, syncguard_error *err)
{
    config->database = given->database;
    config->connections = given->connections != 0 ? given->connections : 2;
    config->wait_replicas = given->wait_replicas;
    config->wait_connections = given->wait_connections != 0 ? given->wait_connections : 4;
    config->spin_ns = (int64_t)given->spin_us * 1000;
    config->tracking = !given->no_tracking;
    if (given->database < 0 || given->database > 1023)
        return redis_options_refuse(err, "database", "must be 0 to 1023");
    if (config->mode == SYNCGUARD_REDIS_CLUSTER && given->database != 0)
        return redis_options_refuse(err, "database", "of a Cluster is always 0");
    if (config->connections < 1 || config->connections > SG_REDIS_MAX_CONNECTIONS)
        return redis_options_refuse(err, "connections", "must be 1 to 64");
    if (config->wait_connections < 1 || config->wait_connections > SG_REDIS_MAX_CONNECTIONS)
        return redis_options_refuse(err, "wait_connections", "must be 1 to 64");
    if (given->wait_replicas < 0 || given->wait_replicas > 100)
        return redis_options_refuse(err, "wait_replicas", "must be 0 to 100");
    if (given->spin_us < 0 || given->spin_us > 1000)
        return redis_options_refuse(err, "spin_us", "must be 0 to 1000");
    return SYNCGUARD_OK;
}

static syncguard_status redis_options_check_combined(const syncguard_redis_options *given,
                                                     sg_redis_config *config, syncguard_error *err)
{
    bool sentinel = config->mode == SYNCGUARD_REDIS_SENTINEL;
    config->tls = given->tls;
    config->tls_verify = !given->tls_insecure;
    if (sentinel != (config->master_name != NULL && config->master_name[0] != '\0'))
        return redis_options_refuse(err, "master_name",
                                    "must be given for Sentinel, and only there");
    if (!sentinel && (given->sentinel_user != NULL || given->sentinel_password != NULL))
        return redis_options_refuse(err, "sentinel_user or sentinel_password", "needs Sentinel");
    if ((given->user != NULL && given->password == NULL) ||
        (given->sentinel_user != NULL && given->sentinel_password == NULL))
        return redis_options_refuse(err, "user", "needs a password");
    if (!given->tls &&
        (given->tls_ca != NULL || given->tls_cert != NULL || given->tls_key != NULL ||
         given->tls_server_name != NULL || given->tls_insecure))
        return redis_options_refuse(err, "an option of TLS", "needs TLS");
    if (given->tls && given->unix_path != NULL)
        return redis_options_refuse(err, "tls", "does not go with a unix socket");
    if (given->tls_key != NULL && given->tls_cert == NULL)
        return redis_options_refuse(err, "tls_key", "needs tls_cert");
    if (given->tls_server_name != NULL && given->tls_server_name[0] == '\0')
        return redis_options_refuse(err, "tls_server_name", "must not be empty");
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_config_read(const syncguard_redis_options *given, sg_redis_config *config,
                                      syncguard_error *err)
{
    static const syncguard_redis_options defaults = SYNCGUARD_REDIS_OPTIONS_INIT;
    syncguard_redis_options read = defaults;
    syncguard_status status = syncguard_struct_read(
        given, &read, sizeof read, SYNCGUARD_SIZE_UP_TO(syncguard_redis_options, no_tracking),
        "redis_options", err);
    if (status == SYNCGUARD_OK && read.mode != SYNCGUARD_REDIS_SINGLE &&
        read.mode != SYNCGUARD_REDIS_SENTINEL && read.mode != SYNCGUARD_REDIS_CLUSTER)
        status = redis_options_refuse(err, "mode", "is unknown");
    config->mode = read.mode;
    if (status == SYNCGUARD_OK)
        status = redis_options_read_address(&read, config, err);
    if (status == SYNCGUARD_OK)
        status = redis_options_copy_all_texts(&read, config, err);
    if (status == SYNCGUARD_OK)
        status = redis_options_check_combined(&read, config, err);
    if (status == SYNCGUARD_OK)
        status = redis_options_read_numbers(&read, config, err);
    if (status == SYNCGUARD_OK)
        status = redis_options_read_prefix(read.prefix, config, err);
    return status;
}

void sg_redis_config_free(sg_redis_config *config)
{
    for (size_t i = 0; i < config->seed_count; i++)
        syncguard_free(config->seeds[i].host);
    syncguard_free(config->master_name);
    syncguard_free_secret(config->user);
    syncguard_free_secret(config->password);
    syncguard_free_secret(config->sentinel_user);
    syncguard_free_secret(config->sentinel_password);
    syncguard_free(config->prefix);
    syncguard_free(config->client_name);
    syncguard_free(config->tls_ca);
    syncguard_free(config->tls_cert);
    syncguard_free(config->tls_key);
    syncguard_free(config->tls_server_name);
    memset(config, 0, sizeof *config);
}

/* ---- URL ---- */

static syncguard_status redis_url_read_database(const char *text, syncguard_redis_options *out,
                                                syncguard_error *err)
{
    char *stop = NULL;
    long value = strtol(text, &stop, 10);
    if (*text < '0' || *text > '9' || *stop != '\0' || value > 1023)
        return redis_options_refuse(err, "the path of the URL", "is no database number");
    out->database = (int)value;
    return SYNCGUARD_OK;
}

/* The path: a database, a socket, or the primary's name and a database. */
static syncguard_status redis_url_read_path(syncguard_url *url, syncguard_redis_options *out,
                                            bool is_unix, syncguard_error *err)
{
    char *path = url->path;
    if (is_unix) {
        if (url->hosts != NULL && url->hosts[0] != '\0')
            return redis_options_refuse(err, "redis+unix", "takes no host");
        out->hosts = NULL;
        out->unix_path = path;
        return SYNCGUARD_OK;
    }
    if (*path == '/')
        path++;
    if (out->mode == SYNCGUARD_REDIS_SENTINEL) {
        char *slash = strchr(path, '/');
        out->master_name = path;
        if (slash == NULL)
            return SYNCGUARD_OK;
        *slash = '\0';
        path = slash + 1;
    }
    if (*path == '\0')
        return SYNCGUARD_OK;
    return redis_url_read_database(path, out, err);
}

static syncguard_status redis_url_read_int(syncguard_url *url, const char *name, int64_t high,
                                           int *out, syncguard_error *err)
{
    int64_t value = *out;
    syncguard_status status = syncguard_url_int(url, name, 0, high, &value, err);
    *out = (int)value;
    return status;
}

/* The scheme decides about TLS; the option must not contradict it. */
static syncguard_status redis_url_read_tls(syncguard_url *url, syncguard_redis_options *out,
                                           syncguard_error *err)
{
    bool tls = out->tls;
    syncguard_status status = syncguard_url_bool(url, "tls", &tls, err);
    bool by_scheme = strcmp(url->scheme, "redis") == 0 || strcmp(url->scheme, "rediss") == 0;
    if (status == SYNCGUARD_OK && by_scheme && tls != out->tls)
        return redis_options_refuse(err, "tls",
                                    "contradicts the scheme: redis is without TLS, rediss with it");
    out->tls = tls;
    return status;
}

static void redis_url_read_texts(syncguard_url *url, syncguard_redis_options *out)
{
    out->prefix = syncguard_url_text(url, "prefix");
    out->client_name = syncguard_url_text(url, "client_name");
    out->tls_ca = syncguard_url_text(url, "tls_ca");
    out->tls_cert = syncguard_url_text(url, "tls_cert");
    out->tls_key = syncguard_url_text(url, "tls_key");
    out->tls_server_name = syncguard_url_text(url, "tls_server_name");
    out->sentinel_user = syncguard_url_text(url, "sentinel_user");
    out->sentinel_password = syncguard_url_text(url, "sentinel_password");
}

static syncguard_status redis_url_read_query(syncguard_url *url, syncguard_redis_options *out,
                                             syncguard_error *err)
{
    redis_url_read_texts(url, out);
    int database = -1;
    const struct {
        const char *name;
        int64_t high;
        int *out;
    } numbers[] = {
        {"database", 1023, &database},
        {"connections", SG_REDIS_MAX_CONNECTIONS, &out->connections},
        {"spin_us", 1000, &out->spin_us},
        {"wait_replicas", 100, &out->wait_replicas},
        {"wait_connections", SG_REDIS_MAX_CONNECTIONS, &out->wait_connections},
    };
    syncguard_status status = SYNCGUARD_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == SYNCGUARD_OK; i++)
        status = redis_url_read_int(url, numbers[i].name, numbers[i].high, numbers[i].out, err);
    if (status == SYNCGUARD_OK && database >= 0) {
        if (out->database >= 0 && database != out->database)
            return redis_options_refuse(err, "database", "contradicts the path of the URL");
        out->database = database;
    }
    if (out->database < 0)
        out->database = 0;
    if (status == SYNCGUARD_OK)
        status = redis_url_read_tls(url, out, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "tls_insecure", &out->tls_insecure, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "no_tracking", &out->no_tracking, err);
    return status;
}

syncguard_status sg_redis_options_read_url(syncguard_url *url, syncguard_redis_options *out,
                                           syncguard_options *common, syncguard_error *err)
{
    bool is_unix = strcmp(url->scheme, "redis+unix") == 0;
    out->tls = strcmp(url->scheme, "rediss") == 0;
    if (strcmp(url->scheme, "redis+sentinel") == 0)
        out->mode = SYNCGUARD_REDIS_SENTINEL;
    else if (strcmp(url->scheme, "redis+cluster") == 0)
        out->mode = SYNCGUARD_REDIS_CLUSTER;
    out->hosts = url->hosts;
    out->user = url->user != NULL && url->user[0] != '\0' ? url->user : NULL;
    out->password = url->password;
    out->database = -1; /* until path or query set it */
    syncguard_status status = redis_url_read_path(url, out, is_unix, err);
    if (status == SYNCGUARD_OK)
        status = redis_url_read_query(url, out, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_common(url, common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    return status;
}
