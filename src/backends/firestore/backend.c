/* The handle: opening, closing, forking; the table of operations; the module. */
#include "backend.h"

#include <string.h>
#include <unistd.h>

#include "operations.h"
#include "options.h"
#include "syncguard/sys/options.h"

extern const syncguard_module syncguard_module_firestore;

/* Frees everything but the base and the struct itself. */
static void firestore_backend_fini(sg_firestore_backend *b)
{
    /* In a forked child nothing may be sent on the parent's connections. */
    if (b->pid != getpid()) {
        (void)sg_firestore_pool_after_fork(&b->pool, NULL);
        (void)sg_firestore_cache_after_fork(&b->cache, NULL);
    }
    sg_firestore_pool_destroy(&b->pool);
    sg_firestore_cache_destroy(&b->cache);
    sg_firestore_clock_destroy(&b->clock);
    sg_firestore_tokens_destroy(&b->tokens);
    sg_firestore_credentials_destroy(&b->credentials);
    sg_firestore_names_destroy(&b->names);
}

static syncguard_status firestore_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    sg_firestore_backend *b = (sg_firestore_backend *)backend;
    syncguard_status status = sg_firestore_pool_after_fork(&b->pool, err);
    if (status == SYNCGUARD_OK)
        status = sg_firestore_tokens_after_fork(&b->tokens, err);
    if (status == SYNCGUARD_OK)
        status = sg_firestore_clock_init(&b->clock, &b->base, b->clock.max_drift_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_firestore_cache_after_fork(&b->cache, err);
    if (status == SYNCGUARD_OK)
        b->pid = getpid();
    return status;
}

static void firestore_destroy(syncguard_backend *backend)
{
    firestore_backend_fini((sg_firestore_backend *)backend);
    syncguard_backend_fini(backend);
    syncguard_free(backend);
}

static const syncguard_backend_ops ops = {
    .acquire = sg_firestore_acquire,
    .release = sg_firestore_release,
    .extend = sg_firestore_extend,
    .extend_many = sg_firestore_extend_many,
    .is_locked = sg_firestore_is_locked,
    .lookup = sg_firestore_lookup,
    .list = sg_firestore_list,
    .list_expired = sg_firestore_list_expired,
    .undo = sg_firestore_undo,
    .cleanup = sg_firestore_cleanup,
    .diagnose = sg_firestore_diagnose,
    .after_fork = firestore_after_fork,
    .destroy = firestore_destroy,
};

/* Everything but the base; undone part by part on failure. */
static syncguard_status firestore_backend_init(sg_firestore_backend *b,
                                               const sg_firestore_config *config,
                                               syncguard_error *err)
{
    const syncguard_firestore_options *options = &config->options;
    syncguard_status status = sg_firestore_names_init(&b->names, options, config->base_url, err);
    b->pid = getpid();
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_firestore_credentials_read(&b->credentials, options, config->emulator, err);
    if (status != SYNCGUARD_OK)
        goto no_credentials;
    status = sg_firestore_tokens_init(&b->tokens, &b->credentials, err);
    if (status != SYNCGUARD_OK)
        goto no_tokens;
    status = sg_firestore_clock_init(&b->clock, &b->base, options->max_clock_drift_ms, err);
    if (status != SYNCGUARD_OK)
        goto no_clock;
    status = sg_firestore_cache_init(&b->cache, err);
    if (status != SYNCGUARD_OK)
        goto no_cache;
    status = sg_firestore_pool_init(&b->pool, options->max_connections, options->ca_file,
                                    config->tls, err);
    if (status == SYNCGUARD_OK)
        return status;
    sg_firestore_cache_destroy(&b->cache);
no_cache:
    sg_firestore_clock_destroy(&b->clock);
no_clock:
    sg_firestore_tokens_destroy(&b->tokens);
no_tokens:
    sg_firestore_credentials_destroy(&b->credentials);
no_credentials:
    sg_firestore_names_destroy(&b->names);
    return status;
}

static syncguard_status firestore_backend_create(const sg_firestore_config *config,
                                                 syncguard_backend **out, syncguard_error *err)
{
    static const syncguard_capabilities capabilities = {
        .backend = "firestore",
        .supports_fencing = true,
        .time_authority = SYNCGUARD_TIME_CLIENT,
        .is_shared = true,
        .keeps_expired = true,
        .works_in_child = true,
    };
    sg_firestore_backend *b = syncguard_calloc(1, sizeof *b);
    if (b == NULL)
        return syncguard_fail_memory(err);
    syncguard_status status = firestore_backend_init(b, config, err);
    if (status == SYNCGUARD_OK) {
        status = syncguard_backend_init(&b->base, &ops, &capabilities, &config->common, err);
        if (status != SYNCGUARD_OK)
            firestore_backend_fini(b);
    }
    if (status == SYNCGUARD_OK)
        *out = &b->base;
    else
        syncguard_free(b);
    return status;
}

syncguard_status syncguard_firestore_open(const syncguard_firestore_options *firestore_options,
                                          const syncguard_options *options, syncguard_backend **out,
                                          syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    sg_firestore_config config;
    syncguard_status status = sg_firestore_config_read(&config, firestore_options, options, err);
    return status == SYNCGUARD_OK ? firestore_backend_create(&config, out, err) : status;
}

syncguard_status syncguard_firestore_clock(syncguard_backend *backend,
                                           syncguard_firestore_clock_info *info,
                                           syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    sg_firestore_instant at = sg_firestore_now();
    syncguard_error_clear(err);
    if (backend == NULL || backend->ops != &ops || info == NULL ||
        info->size < SYNCGUARD_SIZE_UP_TO(syncguard_firestore_clock_info, samples))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "no handle of the firestore backend, or no struct of known size");
    syncguard_firestore_clock_info now = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    if (!sg_firestore_clock_read(&((sg_firestore_backend *)backend)->clock, &at, &now))
        return SYNCGUARD_ABSENT;
    now.size = info->size;
    memcpy(info, &now, now.size < sizeof now ? now.size : sizeof now);
    return SYNCGUARD_OK;
}

/* ---- the module ---- */

static syncguard_status firestore_open_url(const char *text, const syncguard_options *options,
                                           syncguard_backend **out, syncguard_error *err)
{
    syncguard_options common;
    syncguard_url *url = NULL;
    syncguard_status status = syncguard_options_read(options, &common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    if (status == SYNCGUARD_OK)
        status = sg_firestore_url_read(url, &own, &common, err);
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
    .open = firestore_open_url,
    .setup = NULL,
};

syncguard_status syncguard_firestore_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_firestore, err);
}
