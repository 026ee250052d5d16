/* See options.h. */
#include "options.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "syncguard/sys/environment.h"
#include "syncguard/sys/options.h"
#include "text.h"

#define DEFAULT_CONNECTIONS 32
#define MAX_CONNECTIONS 1024
#define MAX_CLOCK_DRIFT_MS INT64_C(86400000)

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
static bool firestore_url_part_is_plain(const char *text, const char *extra)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              strchr(extra, c) != NULL))
            return false;
    }
    return length > 0 && length < SG_FIRESTORE_BASE_URL_SIZE - 16;
}

/* An emulator is reached without TLS and without credentials. */
static syncguard_status
firestore_options_check_conflicts(const syncguard_firestore_options *options, syncguard_error *err)
{
    const char *other = options->endpoint != NULL           ? "endpoint"
                        : options->credentials_file != NULL ? "credentials"
                        : options->token != NULL            ? "token"
                        : options->ca_file != NULL          ? "ca_file"
                                                            : NULL;
    if (options->emulator_host != NULL && options->emulator_host[0] != 0 && other != NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "options emulator_host and %s contradict each other", other);
    return SYNCGUARD_OK;
}

/* An emulator neither encrypts nor authenticates, so its host must be this machine unless the
 * options allow others. */
static syncguard_status firestore_config_use_emulator(sg_firestore_config *config, const char *host,
                                                      const char *source, syncguard_error *err)
{
    if (strncmp(host, "http://", 7) == 0)
        host += 7;
    if (!firestore_url_part_is_plain(host, "-._:[]"))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s is no HOST:PORT",
                              source);
    (void)snprintf(config->base_url, sizeof config->base_url, "http://%s", host);
    if (!config->options.emulator_any_host && !sg_firestore_url_loopback(config->base_url))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s is not a loopback address (option emulator_any_host allows "
                              "others)",
                              source);
    config->emulator = true;
    return SYNCGUARD_OK;
}

static syncguard_status firestore_config_use_endpoint(sg_firestore_config *config,
                                                      syncguard_error *err)
{
    const char *endpoint = config->options.endpoint != NULL ? config->options.endpoint
                                                            : "https://firestore.googleapis.com";
    bool http = strncasecmp(endpoint, "http://", 7) == 0;
    config->tls = strncasecmp(endpoint, "https://", 8) == 0;
    if (!(config->tls || http) || !firestore_url_part_is_plain(endpoint, "-._:[]/"))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option endpoint is no https URL of a server");
    if (http && !sg_firestore_url_loopback(endpoint))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option endpoint must be https, or a loopback address");
    (void)snprintf(config->base_url, sizeof config->base_url, "%s", endpoint);
    size_t length = strlen(config->base_url);
    while (length > 0 && config->base_url[length - 1] == '/')
        config->base_url[--length] = '\0';
    return SYNCGUARD_OK;
}

static syncguard_status firestore_config_set_server(sg_firestore_config *config,
                                                    syncguard_error *err)
{
    const char *host = config->options.emulator_host;
    const char *source = "option emulator_host";
    if (host == NULL) {
        host = syncguard_environment("FIRESTORE_EMULATOR_HOST");
        source = "FIRESTORE_EMULATOR_HOST";
    }
    return host != NULL && host[0] != 0 ? firestore_config_use_emulator(config, host, source, err)
                                        : firestore_config_use_endpoint(config, err);
}

static syncguard_status firestore_options_check_numbers(const syncguard_firestore_options *options,
                                                        syncguard_error *err)
{
    if (options->max_connections < 0 || options->max_connections > MAX_CONNECTIONS)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option max_connections is not within 0 to %d", MAX_CONNECTIONS);
    if (options->max_clock_drift_ms < 0 || options->max_clock_drift_ms > MAX_CLOCK_DRIFT_MS)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option max_clock_drift_ms is not within 0 to 86400000");
    return SYNCGUARD_OK;
}

syncguard_status sg_firestore_config_read(sg_firestore_config *config,
                                          const syncguard_firestore_options *options,
                                          const syncguard_options *common, syncguard_error *err)
{
    static const syncguard_firestore_options defaults = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    memset(config, 0, sizeof *config);
    config->options = defaults;
    syncguard_status status =
        syncguard_struct_read(options, &config->options, sizeof config->options,
                              SYNCGUARD_SIZE_UP_TO(syncguard_firestore_options, max_clock_drift_ms),
                              "firestore options", err);
    if (status == SYNCGUARD_OK)
        status = syncguard_options_read(common, &config->common, err);
    if (status == SYNCGUARD_OK)
        status = firestore_options_check_numbers(&config->options, err);
    if (status == SYNCGUARD_OK)
        status = firestore_options_check_conflicts(&config->options, err);
    if (status == SYNCGUARD_OK)
        status = firestore_config_set_server(config, err);
    if (config->options.max_connections == 0)
        config->options.max_connections = DEFAULT_CONNECTIONS;
    return status;
}

syncguard_status sg_firestore_url_read(syncguard_url *url, syncguard_firestore_options *options,
                                       syncguard_options *common, syncguard_error *err)
{
    int64_t connections = options->max_connections;
    if (url->user != NULL || url->password != NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "a firestore URL has no user info");
    options->project = url->hosts;
    if (url->path[0] == '/' && url->path[1] != 0)
        options->database = url->path + 1;
    options->collection = syncguard_url_text(url, "collection");
    options->fence_collection = syncguard_url_text(url, "fence_collection");
    options->emulator_host = syncguard_url_text(url, "emulator_host");
    syncguard_status status =
        syncguard_url_bool(url, "emulator_any_host", &options->emulator_any_host, err);
    if (status != SYNCGUARD_OK)
        return status;
    options->endpoint = syncguard_url_text(url, "endpoint");
    options->credentials_file = syncguard_url_text(url, "credentials");
    options->ca_file = syncguard_url_text(url, "ca_file");
    status = syncguard_url_int(url, "max_connections", 1, MAX_CONNECTIONS, &connections, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_int(url, "max_clock_drift_ms", 0, MAX_CLOCK_DRIFT_MS,
                                   &options->max_clock_drift_ms, err);
    options->max_connections = (int32_t)connections;
    if (status == SYNCGUARD_OK)
        status = syncguard_url_common(url, common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    return status;
}
