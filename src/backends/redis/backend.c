/*
 * Construction and end of the backend, its table of operations, and the module
 * that syncguard_open finds. Opening makes no connection: the first operation
 * does, so that a handle can be opened while the server is away.
 */
#include <string.h>

#include "internal.h"

/*
 * What an index holds once its id has been taken back. It is the name of an
 * index that cannot exist (no drawn id ends in a dash), so that the other
 * library, which follows an index, finds nothing there.
 */
static void make_tombstone(sg_backend *backend)
{
    sg_name name;
    sg_redis_name_index(backend, "----------------------", &name);
    memcpy(backend->tombstone, name.text, name.length + 1);
    backend->tombstone_length = name.length;
}

/* What threads and connections need; made anew in a forked child. */
static syncguard_status make_live_parts(sg_backend *backend, syncguard_error *err)
{
    const sg_config *config = &backend->config;
    size_t count = (size_t)config->connections + 1;
    if (config->wait_replicas > 0)
        count += (size_t)config->wait_connections;
    syncguard_status status = sg_redis_resolver_create(&backend->resolver, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (config->tracking) {
        status = sg_redis_tracker_create(backend, &backend->tracker, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    backend->links = syncguard_calloc(count, sizeof *backend->links);
    if (backend->links == NULL)
        return syncguard_fail_memory(err);
    backend->link_count = 0;
    for (size_t i = 0; i < count; i++) {
        status = sg_redis_link_init(&backend->links[i], backend, err);
        if (status != SYNCGUARD_OK)
            return status;
        backend->link_count++;
    }
    if (config->mode == SYNCGUARD_REDIS_CLUSTER) {
        status = sg_redis_link_init(&backend->ask, backend, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    memset(&backend->route, 0, sizeof backend->route);
    if (pthread_mutex_init(&backend->route.mutex, NULL) != 0 ||
        pthread_mutex_init(&backend->wait_mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    backend->wait_busy = 0;
    return syncguard_gate_init(&backend->wait_gate, config->wait_connections, err);
}

static void free_live_parts(sg_backend *backend, bool forked)
{
    sg_redis_tracker_free(backend->tracker, forked);
    backend->tracker = NULL;
    for (size_t i = 0; i < backend->link_count; i++)
        sg_redis_link_fini(&backend->links[i], forked);
    if (backend->ask.backend != NULL)
        sg_redis_link_fini(&backend->ask, forked);
    backend->ask.backend = NULL;
    syncguard_free(backend->links);
    backend->links = NULL;
    backend->link_count = 0;
    sg_redis_resolver_free(backend->resolver);
    backend->resolver = NULL;
}

static sg_backend *of(syncguard_backend *base)
{
    return (sg_backend *)(void *)base;
}

static void unwatch(syncguard_backend *base, const char *key, size_t key_length)
{
    sg_backend *backend = of(base);
    sg_name name;
    (void)key_length;
    if (backend->tracker == NULL || !backend->config.names_hashed)
        return;
    if (sg_redis_name_lock(backend, key, &name, NULL) == SYNCGUARD_OK)
        sg_redis_tracker_unwatch(backend->tracker, name.text, name.length);
}

static syncguard_status listen_to_reports(syncguard_backend *base, syncguard_parker *parker,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    sg_backend *backend = of(base);
    return backend->tracker != NULL ? sg_redis_tracker_listen(backend->tracker, parker, limits, err)
                                    : SYNCGUARD_ABSENT;
}

static void take_over(syncguard_backend *base)
{
    sg_backend *backend = of(base);
    if (backend->tracker != NULL)
        sg_redis_tracker_take_over(backend->tracker);
}

static syncguard_status after_fork(syncguard_backend *base, syncguard_error *err)
{
    sg_backend *backend = of(base);
    free_live_parts(backend, true);
    return make_live_parts(backend, err);
}

static void destroy(syncguard_backend *base)
{
    sg_backend *backend = of(base);
    /* The core adopts a handle before it destroys it, so all parts are this process's own. */
    free_live_parts(backend, false);
    syncguard_gate_destroy(&backend->wait_gate);
    sg_redis_tls_free(backend->tls);
    sg_redis_config_free(&backend->config);
    syncguard_backend_fini(&backend->base);
    syncguard_free(backend);
}

const syncguard_backend_ops sg_redis_ops = {
    .check_key = sg_redis_check_key,
    .acquire = sg_redis_acquire,
    .release = sg_redis_release,
    .extend = sg_redis_extend,
    .extend_many = sg_redis_extend_many,
    .is_locked = sg_redis_is_locked,
    .lookup = sg_redis_lookup_lock,
    .list = sg_redis_list,
    .undo = sg_redis_undo,
    .undo_many = sg_redis_undo_many,
    .cleanup = sg_redis_cleanup,
    .unwatch = unwatch,
    .watch_lasts = false,
    .listen = listen_to_reports,
    .take_over = take_over,
    .examine = sg_redis_examine,
    .after_fork = after_fork,
    .destroy = destroy,
};

syncguard_status syncguard_redis_open(const syncguard_redis_options *redis_options,
                                      const syncguard_options *options, syncguard_backend **out,
                                      syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    static const syncguard_capabilities capabilities = {"redis", true, SYNCGUARD_TIME_SERVER};
    syncguard_options common;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "redis: out is NULL");
    *out = NULL;
    syncguard_status status = syncguard_options_read(options, &common, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_backend *backend = syncguard_calloc(1, sizeof *backend);
    if (backend == NULL)
        return syncguard_fail_memory(err);
    backend->tolerance_ms = SYNCGUARD_TIME_TOLERANCE_MS;
    status = sg_redis_config_read(redis_options, &backend->config, err);
    if (status == SYNCGUARD_OK && backend->config.tls)
        status = sg_redis_tls_create(&backend->config, &backend->tls, err);
    if (status == SYNCGUARD_OK) {
        make_tombstone(backend);
        status = syncguard_backend_init(&backend->base, &sg_redis_ops, &capabilities, &common, err);
    }
    if (status == SYNCGUARD_OK)
        status = make_live_parts(backend, err);
    if (status == SYNCGUARD_OK) {
        *out = &backend->base;
    } else {
        free_live_parts(backend, false);
        sg_redis_tls_free(backend->tls);
        sg_redis_config_free(&backend->config);
        if (backend->base.core != NULL)
            syncguard_backend_fini(&backend->base);
        syncguard_free(backend);
    }
    return status;
}

static const char *const schemes[] = {"redis",         "rediss",     "redis+sentinel",
                                      "redis+cluster", "redis+unix", NULL};

SYNCGUARD_API extern const syncguard_module syncguard_module_redis;
const syncguard_module syncguard_module_redis = {
    .abi = SYNCGUARD_ABI,
    .name = "redis",
    .schemes = schemes,
    .open = sg_redis_open_url,
    .setup = NULL,
};

syncguard_status syncguard_redis_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_redis, err);
}
