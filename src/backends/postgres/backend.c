/*
 * Operation table; open, close and setup; fork.
 */
#include <unistd.h>

#include "operations.h"
#include "options.h"
#include "schema.h"

static const syncguard_capabilities capabilities = {
    .backend = "postgres",
    .supports_fencing = true,
    .time_authority = SYNCGUARD_TIME_SERVER,
    .is_shared = true,
    .keeps_expired = true,
    .works_in_child = true,
};

static void pg_unwatch(syncguard_backend *backend, const char *key, size_t key_length)
{
    sg_pg *pg = sg_pg_of(backend);
    if (pg->listener != NULL)
        sg_pg_listener_disarm(pg->listener, key, key_length);
}

static bool pg_connection_ended(syncguard_backend *backend)
{
    return sg_pg_pool_has_ended(sg_pg_of(backend)->pool);
}

static syncguard_status pg_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    pg->pid = getpid();
    sg_pg_pool_forget(pg->pool);
    return pg->listener != NULL ? sg_pg_listener_forget(pg->listener, err) : SYNCGUARD_OK;
}

static void pg_backend_fini(sg_pg *pg)
{
    if (pg->pool != NULL && pg->pid != getpid()) {
        /* A child that never used the handle. */
        if (pg->listener != NULL)
            (void)sg_pg_listener_forget(pg->listener, NULL);
        sg_pg_pool_forget(pg->pool);
    }
    sg_pg_listener_destroy(pg->listener);
    if (pg->pool != NULL)
        sg_pg_pool_close(pg->pool);
    sg_pg_statements_free(&pg->statements);
}

static void pg_destroy(syncguard_backend *backend)
{
    sg_pg *pg = sg_pg_of(backend);
    pg_backend_fini(pg);
    syncguard_backend_fini(backend);
    syncguard_free(pg);
}

static const syncguard_backend_ops ops = {
    .acquire = sg_pg_acquire,
    .release = sg_pg_release,
    .extend = sg_pg_extend,
    .extend_many = sg_pg_extend_many,
    .is_locked = sg_pg_is_locked,
    .lookup = sg_pg_lookup,
    .list = sg_pg_list,
    .list_expired = sg_pg_list_expired,
    .undo = sg_pg_undo,
    .cleanup = sg_pg_cleanup,
    .unwatch = pg_unwatch,
    .diagnose = sg_pg_diagnose,
    .after_fork = pg_after_fork,
    .destroy = pg_destroy,
    .connection_ended = pg_connection_ended,
};

static syncguard_status pg_backend_init(sg_pg *pg, const sg_pg_config *config, syncguard_error *err)
{
    pg->pid = getpid();
    pg->pooler = config->own.pooler;
    pg->statements.locks = config->locks;
    pg->statements.fences = config->fences;
    atomic_init(&pg->statements.form, -1);
    atomic_init(&pg->statements.prepared, config->own.prepared);
    atomic_init(&pg->pooler_found, false);
    atomic_init(&pg->queue_full, false);
    sg_pg_format(pg->tolerance, SYNCGUARD_TIME_TOLERANCE_MS);
    sg_pg_format(pg->fence_max, SYNCGUARD_FENCE_MAX);
    syncguard_status status = sg_pg_statements_write(&pg->statements, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_options_pool(config, &pg->pool, err);
    if (status == SYNCGUARD_OK && pg->pool->target->passfile_refused)
        syncguard_backend_log(
            &pg->base, SYNCGUARD_LOG_WARN,
            "the password file is not used: it must be a plain file that only its "
            "owner can read");
    if (status == SYNCGUARD_OK && config->own.listen)
        status = sg_pg_listener_create(&pg->base, pg->pool, &pg->listener, err);
    return status;
}

syncguard_status syncguard_postgres_open(const syncguard_postgres_options *postgres_options,
                                         const syncguard_options *options, syncguard_backend **out,
                                         syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    sg_pg_config config;
    syncguard_status status = sg_pg_options_read(postgres_options, options, &config, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_pg *pg = syncguard_calloc(1, sizeof *pg);
    if (pg == NULL)
        return syncguard_fail_memory(err);
    syncguard_capabilities able = capabilities;
    able.wakes_waiters = config.own.listen;
    status = syncguard_backend_init(&pg->base, &ops, &able, &config.common, err);
    if (status != SYNCGUARD_OK) {
        syncguard_free(pg);
        return status;
    }
    status = pg_backend_init(pg, &config, err);
    if (status == SYNCGUARD_OK)
        *out = &pg->base;
    else
        pg_destroy(&pg->base);
    return status;
}

syncguard_status syncguard_postgres_setup(const syncguard_postgres_options *postgres_options,
                                          const syncguard_options *options,
                                          syncguard_print_fn print, void *print_context,
                                          syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    sg_pg_config config;
    syncguard_status status = sg_pg_options_read(postgres_options, options, &config, err);
    if (status == SYNCGUARD_OK && print != NULL) {
        sg_pg_schema_print(&config.locks, &config.fences, print, print_context);
        return SYNCGUARD_OK;
    }
    sg_pg_pool *pool = NULL;
    if (status == SYNCGUARD_OK)
        status = sg_pg_options_pool(&config, &pool, err);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    limits.deadline_ns = syncguard_clock_after(syncguard_clock_ns(), config.common.timeout_ms);
    sg_pg_connection *connection = NULL;
    status = sg_pg_check_out(pool, &limits, &connection, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_schema_create(connection, &config.locks, &config.fences, &config.common,
                                     &limits, err);
    if (connection != NULL &&
        (status == SYNCGUARD_E_NETWORK_TIMEOUT || status == SYNCGUARD_E_ABORTED))
        sg_pg_abandon(connection, NULL);
    else if (connection != NULL)
        sg_pg_pool_discard(connection);
    sg_pg_pool_close(pool);
    return status;
}

/* ---- the module ---- */

static syncguard_status pg_open_url(const char *text, const syncguard_options *options,
                                    syncguard_backend **out, syncguard_error *err)
{
    sg_pg_url url;
    syncguard_status status = sg_pg_url_read(text, options, &url, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_postgres_open(&url.own, &url.common, out, err);
    sg_pg_url_free(&url);
    return status;
}

static syncguard_status pg_setup_url(const char *text, const syncguard_options *options,
                                     syncguard_print_fn print, void *print_context,
                                     syncguard_error *err)
{
    sg_pg_url url;
    syncguard_status status = sg_pg_url_read(text, options, &url, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_postgres_setup(&url.own, &url.common, print, print_context, err);
    sg_pg_url_free(&url);
    return status;
}

static const char *const schemes[] = {"postgres", "postgresql", NULL};

SYNCGUARD_API extern const syncguard_module syncguard_module_postgres;
const syncguard_module syncguard_module_postgres = {
    .abi = SYNCGUARD_ABI,
    .name = "postgres",
    .schemes = schemes,
    .open = pg_open_url,
    .setup = pg_setup_url,
};

syncguard_status syncguard_postgres_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_postgres, err);
}
