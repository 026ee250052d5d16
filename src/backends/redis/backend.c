/*
 * Opens and closes the backend; its table of operations; and the module that syncguard_open finds.
 * Opening a handle makes no connection, the first operation does: so a handle can be opened while
 * the server is down.
 */
#include "backend.h"

#include <string.h>

#include "notify.h"
#include "operations.h"
#include "syncguard/sys/options.h"

static syncguard_status redis_transport_init_link(sg_redis_backend *backend, sg_redis_link *link,
                                                  syncguard_error *err)
{
    syncguard_status status =
        sg_redis_link_init(link, &backend->dialer, &backend->topology, &backend->tracker, err);
    link->backend = &backend->base;
    return status;
}

/* Creates all mutexes or none. */
static syncguard_status redis_transport_init_mutexes(sg_redis_backend *backend,
                                                     syncguard_error *err)
{
    syncguard_status status = sg_redis_tracker_init(&backend->tracker, err);
    if (status != SYNCGUARD_OK)
        return status;
    bool topology = pthread_mutex_init(&backend->topology.mutex, NULL) == 0;
    backend->has_mutexes = topology && pthread_mutex_init(&backend->wait_mutex, NULL) == 0;
    if (backend->has_mutexes)
        return SYNCGUARD_OK;
    if (topology)
        pthread_mutex_destroy(&backend->topology.mutex);
    sg_redis_tracker_fini(&backend->tracker, false);
    return syncguard_fail_memory(err);
}

/* In a forked child a thread of the parent may have locked them: they are left. */
static void redis_transport_fini_mutexes(sg_redis_backend *backend, bool forked)
{
    if (!backend->has_mutexes)
        return;
    sg_redis_tracker_fini(&backend->tracker, forked);
    if (!forked) {
        pthread_mutex_destroy(&backend->topology.mutex);
        pthread_mutex_destroy(&backend->wait_mutex);
    }
    backend->has_mutexes = false;
}

/* Creates what threads and connections need; called again in a forked child. */
static syncguard_status redis_transport_init(sg_redis_backend *backend, syncguard_error *err)
{
    const sg_redis_config *config = &backend->config;
    size_t count = (size_t)config->connections + 1;
    if (config->wait_replicas > 0)
        count += (size_t)config->wait_connections;
    memset(&backend->topology, 0, sizeof backend->topology);
    backend->wait_busy = 0;
    syncguard_status status = redis_transport_init_mutexes(backend, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_resolver_create(&backend->dialer.resolver, err);
    if (status == SYNCGUARD_OK && config->tracking)
        status = sg_redis_notifier_create(backend, &backend->notifier, err);
    if (status != SYNCGUARD_OK)
        return status;
    backend->links = syncguard_calloc(count, sizeof *backend->links);
    if (backend->links == NULL)
        return syncguard_fail_memory(err);
    for (backend->link_count = 0; backend->link_count < count; backend->link_count++) {
        status = redis_transport_init_link(backend, &backend->links[backend->link_count], err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (config->mode == SYNCGUARD_REDIS_CLUSTER)
        status = redis_transport_init_link(backend, &backend->ask, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_gate_init(&backend->wait_gate, config->wait_connections, err);
    return status;
}

static void redis_transport_fini(sg_redis_backend *backend, bool forked)
{
    sg_redis_notifier_free(backend->notifier, forked);
    backend->notifier = NULL;
    for (size_t i = 0; i < backend->link_count; i++)
        sg_redis_link_fini(&backend->links[i], forked);
    if (backend->ask.dialer != NULL)
        sg_redis_link_fini(&backend->ask, forked);
    backend->ask.dialer = NULL;
    syncguard_free(backend->links);
    backend->links = NULL;
    backend->link_count = 0;
    sg_redis_resolver_free(backend->dialer.resolver);
    backend->dialer.resolver = NULL;
    redis_transport_fini_mutexes(backend, forked);
}

/* ---- operation table ---- */

static sg_redis_backend *redis_backend_of(syncguard_backend *base)
{
    return (sg_redis_backend *)(void *)base;
}

static syncguard_status redis_backend_check_key(const syncguard_backend *base, const char *key,
                                                size_t key_length, syncguard_error *err)
{
    (void)key_length;
    return sg_redis_name_check(&((const sg_redis_backend *)(const void *)base)->config, key, err);
}

static bool redis_backend_connection_ended(syncguard_backend *base)
{
    sg_redis_backend *backend = redis_backend_of(base);
    bool ended = false;
    for (size_t i = 0; i < backend->link_count; i++)
        ended = sg_redis_link_ended(&backend->links[i]) || ended;
    return ended;
}

static syncguard_status redis_backend_after_fork(syncguard_backend *base, syncguard_error *err)
{
    sg_redis_backend *backend = redis_backend_of(base);
    redis_transport_fini(backend, true);
    return redis_transport_init(backend, err);
}

static void redis_backend_destroy(syncguard_backend *base)
{
    sg_redis_backend *backend = redis_backend_of(base);
    /* The core adopts a handle before it destroys it, so all parts are this process's own. */
    redis_transport_fini(backend, false);
    syncguard_gate_destroy(&backend->wait_gate);
    sg_redis_tls_free(backend->dialer.tls);
    sg_redis_config_free(&backend->config);
    syncguard_backend_fini(&backend->base);
    syncguard_free(backend);
}

/* No unwatch: the server forgets a name with its first notification. */
#define OPERATIONS                                                                                 \
    .check_key = redis_backend_check_key, .acquire = sg_redis_acquire,                             \
    .release = sg_redis_release, .extend = sg_redis_extend, .extend_many = sg_redis_extend_many,   \
    .is_locked = sg_redis_is_locked, .lookup = sg_redis_lookup, .list = sg_redis_list,             \
    .undo = sg_redis_undo, .undo_many = sg_redis_undo_many, .cleanup = sg_redis_cleanup,           \
    .diagnose = sg_redis_diagnose, .after_fork = redis_backend_after_fork,                         \
    .destroy = redis_backend_destroy, .connection_ended = redis_backend_connection_ended

static const syncguard_backend_ops ops = {OPERATIONS, .do_many = sg_redis_do_many};
/* With wait_replicas an acquire waits on a connection of its own, so there is no do_many. */
static const syncguard_backend_ops confirming_ops = {OPERATIONS};

/* ---- opening ---- */

static const syncguard_capabilities capabilities = {
    .backend = "redis",
    .supports_fencing = true,
    .time_authority = SYNCGUARD_TIME_SERVER,
    .is_shared = true,
    .works_in_child = true,
};

/* On failure the caller frees what has been created. */
static syncguard_status redis_backend_init(sg_redis_backend *backend,
                                           const syncguard_redis_options *redis_options,
                                           const syncguard_options *common, syncguard_error *err)
{
    sg_redis_config *config = &backend->config;
    backend->tolerance_ms = SYNCGUARD_TIME_TOLERANCE_MS;
    backend->dialer.config = config;
    syncguard_status status = sg_redis_config_read(redis_options, config, err);
    if (status == SYNCGUARD_OK && config->tls)
        status = sg_redis_tls_create(config, &backend->dialer.tls, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_tombstone(config, &backend->tombstone);
    syncguard_capabilities able = capabilities;
    able.wakes_waiters = config->tracking;
    status = syncguard_backend_init(
        &backend->base, config->wait_replicas > 0 ? &confirming_ops : &ops, &able, common, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = redis_transport_init(backend, err);
    if (status != SYNCGUARD_OK)
        redis_transport_fini(backend, false);
    return status;
}

syncguard_status syncguard_redis_open(const syncguard_redis_options *redis_options,
                                      const syncguard_options *options, syncguard_backend **out,
                                      syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    syncguard_options common;
    syncguard_status status = syncguard_options_read(options, &common, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_backend *backend = syncguard_calloc(1, sizeof *backend);
    if (backend == NULL)
        return syncguard_fail_memory(err);
    status = redis_backend_init(backend, redis_options, &common, err);
    if (status == SYNCGUARD_OK) {
        *out = &backend->base;
        return status;
    }
    sg_redis_tls_free(backend->dialer.tls);
    sg_redis_config_free(&backend->config);
    if (backend->base.core != NULL)
        syncguard_backend_fini(&backend->base);
    syncguard_free(backend);
    return status;
}

static syncguard_status redis_backend_open_url(const char *text, const syncguard_options *options,
                                               syncguard_backend **out, syncguard_error *err)
{
    syncguard_url *url = NULL;
    syncguard_redis_options given = SYNCGUARD_REDIS_OPTIONS_INIT;
    syncguard_options common;
    syncguard_status status = syncguard_options_read(options, &common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_options_read_url(url, &given, &common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_redis_open(&given, &common, out, err);
    syncguard_url_free(url);
    return status;
}

static const char *const schemes[] = {"redis",         "rediss",     "redis+sentinel",
                                      "redis+cluster", "redis+unix", NULL};

SYNCGUARD_API extern const syncguard_module syncguard_module_redis;
const syncguard_module syncguard_module_redis = {
    .abi = SYNCGUARD_ABI,
    .name = "redis",
    .schemes = schemes,
    .open = redis_backend_open_url,
    .setup = NULL,
};

syncguard_status syncguard_redis_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_redis, err);
}
