/*
 * The face of the backend: options, URL, open and close, the op table.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pg.h"
#include "syncguard/sys/options.h"
#include "syncguard/sys/url.h"

static const syncguard_capabilities capabilities = {"postgres", true, SYNCGUARD_TIME_SERVER};

static void unwatch(syncguard_backend *backend, const char *key, size_t key_length)
{
    sg_pg *pg = sg_pg_of(backend);

    if (pg->listener)
        sg_pg_listener_disarm(pg->listener, key, key_length);
}

static syncguard_status listen_to_notifications(syncguard_backend *backend,
                                                syncguard_parker *parker,
                                                const syncguard_limits *limits,
                                                syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);

    return pg->listener ? sg_pg_listener_listen(pg->listener, parker, limits, err)
                        : SYNCGUARD_ABSENT;
}

static void take_over(syncguard_backend *backend)
{
    sg_pg *pg = sg_pg_of(backend);

    if (pg->listener)
        sg_pg_listener_take_over(pg->listener);
}

static syncguard_status after_fork(syncguard_backend *backend, syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);

    pg->pid = getpid();
    sg_pg_pool_forget(pg->pool);
    return pg->listener ? sg_pg_listener_forget(pg->listener, err) : SYNCGUARD_OK;
}

static void free_parts(sg_pg *pg)
{
    int i;
    int form;

    if (pg->pool && pg->pid != getpid()) {
        /* A child that never used the handle. */
        if (pg->listener)
            (void)sg_pg_listener_forget(pg->listener, NULL);
        sg_pg_pool_forget(pg->pool);
    }
    sg_pg_listener_destroy(pg->listener);
    if (pg->pool)
        sg_pg_pool_close(pg->pool);
    for (form = 0; form < 2; form++) {
        for (i = 0; i < SG_PG_STATEMENTS; i++)
            syncguard_free(pg->sql[form][i]);
    }
}

static void destroy(syncguard_backend *backend)
{
    sg_pg *pg = sg_pg_of(backend);

    free_parts(pg);
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
    .undo = sg_pg_undo,
    .cleanup = sg_pg_cleanup,
    .unwatch = unwatch,
    .watch_lasts = true,
    .listen = listen_to_notifications,
    .take_over = take_over,
    .examine = sg_pg_examine,
    .after_fork = after_fork,
    .destroy = destroy,
};

/* ---- options ----------------------------------------------------------------------------- */

void syncguard_postgres_options_init(syncguard_postgres_options *options, size_t size)
{
    static const syncguard_postgres_options defaults = SYNCGUARD_POSTGRES_OPTIONS_INIT;

    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

static syncguard_status read_tables(const syncguard_postgres_options *read, sg_pg_table *locks,
                                    sg_pg_table *fences, syncguard_error *err)
{
    syncguard_status status;

    status = sg_pg_table_read(read->lock_table ? read->lock_table : SYNCGUARD_POSTGRES_LOCK_TABLE,
                              "lock_table", locks, err);
    if (status == SYNCGUARD_OK)
        status =
            sg_pg_table_read(read->fence_table ? read->fence_table : SYNCGUARD_POSTGRES_FENCE_TABLE,
                             "fence_table", fences, err);
    if (status == SYNCGUARD_OK && strcmp(locks->quoted, fences->quoted) == 0)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "options lock_table and fence_table must differ");
    return status;
}

static syncguard_status read_options(const syncguard_postgres_options *given,
                                     syncguard_postgres_options *out, sg_pg_table *locks,
                                     sg_pg_table *fences, syncguard_error *err)
{
    syncguard_status status;

    syncguard_postgres_options_init(out, sizeof *out);
    status = syncguard_struct_read(given, out, sizeof *out, sizeof *out, "postgres_options", err);
    if (status != SYNCGUARD_OK)
        return status;
    if (out->pool_max < 1 || out->pool_max > 1000)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option pool_max must be 1 to 1000");
    if (out->spin_us < 0 || out->spin_us > 1000000)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option spin_us must be 0 to 1000000");
    if (out->pooler) {
        out->prepared = false;
        out->listen = false;
    }
    return read_tables(out, locks, fences, err);
}

/* ---- open -------------------------------------------------------------------------------- */

static syncguard_status write_statements(sg_pg *pg, syncguard_error *err)
{
    int form;
    int i;

    snprintf(pg->tolerance, sizeof pg->tolerance, "%d", SYNCGUARD_TIME_TOLERANCE_MS);
    snprintf(pg->fence_max, sizeof pg->fence_max, "%lld", (long long)SYNCGUARD_FENCE_MAX);
    for (form = 0; form < 2; form++) {
        for (i = 0; i < SG_PG_STATEMENTS; i++) {
            char *sql = sg_pg_sql((sg_pg_statement)i, &pg->locks, &pg->fences, form == 1);

            if (!sql)
                return syncguard_fail_memory(err);
            pg->sql[form][i] = sql;
            sg_pg_statement_name(sql, pg->names[form][i]);
        }
    }
    return SYNCGUARD_OK;
}

static syncguard_status make_pool(const syncguard_postgres_options *read, int64_t timeout_ms,
                                  sg_pg_pool **out, syncguard_error *err)
{
    sg_pg_target *target = NULL;
    syncguard_status status;

    status = sg_pg_target_read(read->conninfo, read->pooler ? 0 : sg_pg_server_ms(timeout_ms),
                               &target, err);
    if (status != SYNCGUARD_OK)
        return status;
    return sg_pg_pool_create(target, read->pool_max, timeout_ms, out, err);
}

syncguard_status syncguard_postgres_open(const syncguard_postgres_options *postgres_options,
                                         const syncguard_options *options, syncguard_backend **out,
                                         syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_postgres_options read;
    syncguard_options common;
    sg_pg *pg = NULL;
    bool based = false;
    syncguard_status status;

    syncguard_error_clear(err);
    if (!out)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out is NULL");
    *out = NULL;
    pg = syncguard_calloc(1, sizeof *pg);
    if (!pg)
        return syncguard_fail_memory(err);
    pg->pid = getpid();
    status = syncguard_options_read(options, &common, err);
    if (status == SYNCGUARD_OK)
        status = read_options(postgres_options, &read, &pg->locks, &pg->fences, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_backend_init(&pg->base, &ops, &capabilities, &common, err);
    if (status != SYNCGUARD_OK)
        goto out;
    based = true;
    atomic_init(&pg->prepared, read.prepared);
    atomic_init(&pg->form, -1);
    atomic_init(&pg->unexpected, false);
    atomic_init(&pg->queue_full, false);
    pg->pooler = read.pooler;
    pg->spin_us = read.spin_us;
    status = make_pool(&read, common.timeout_ms, &pg->pool, err);
    if (status == SYNCGUARD_OK && pg->pool->target->passfile_refused)
        syncguard_backend_log(
            &pg->base, SYNCGUARD_LOG_WARN,
            "the password file is not used: it must be a plain file that only its "
            "owner can read");
    if (status == SYNCGUARD_OK)
        status = write_statements(pg, err);
    if (status == SYNCGUARD_OK && read.listen)
        status = sg_pg_listener_create(pg, &pg->listener, err);
out:
    if (status == SYNCGUARD_OK) {
        *out = &pg->base;
    } else {
        free_parts(pg);
        if (based)
            syncguard_backend_fini(&pg->base);
        syncguard_free(pg);
    }
    return status;
}

syncguard_status syncguard_postgres_setup(const syncguard_postgres_options *postgres_options,
                                          const syncguard_options *options,
                                          syncguard_print_fn print, void *print_context,
                                          syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_postgres_options read;
    syncguard_options common;
    sg_pg_table locks;
    sg_pg_table fences;
    sg_pg_pool *pool = NULL;
    sg_pg_connection *connection = NULL;
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    syncguard_status status;

    syncguard_error_clear(err);
    status = syncguard_options_read(options, &common, err);
    if (status == SYNCGUARD_OK)
        status = read_options(postgres_options, &read, &locks, &fences, err);
    if (status == SYNCGUARD_OK && print)
        return sg_pg_schema_print(&locks, &fences, print, print_context, err);
    if (status == SYNCGUARD_OK)
        status = make_pool(&read, common.timeout_ms, &pool, err);
    if (status != SYNCGUARD_OK)
        return status;
    limits.deadline_ns = syncguard_clock_after(syncguard_clock_ns(), common.timeout_ms);
    status = sg_pg_lend(pool, &limits, &connection, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_schema_create(connection, &locks, &fences, &limits, err);
    if (connection && (status == SYNCGUARD_E_NETWORK_TIMEOUT || status == SYNCGUARD_E_ABORTED))
        sg_pg_abandon(connection, NULL);
    else if (connection)
        sg_pg_discard(connection);
    sg_pg_pool_close(pool);
    return status;
}

/* ---- the URL ----------------------------------------------------------------------------- */

static syncguard_status read_url_options(syncguard_url *url, syncguard_options *common,
                                         syncguard_postgres_options *own, syncguard_error *err)
{
    int64_t pool_max = own->pool_max;
    int64_t spin_us = own->spin_us;
    syncguard_status status = syncguard_url_common(url, common, err);

    own->lock_table = syncguard_url_text(url, "lock_table");
    own->fence_table = syncguard_url_text(url, "fence_table");
    if (status == SYNCGUARD_OK)
        status = syncguard_url_int(url, "pool_max", 1, 1000, &pool_max, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_int(url, "spin_us", 0, 1000000, &spin_us, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "pooler", &own->pooler, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "prepared", &own->prepared, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "listen", &own->listen, err);
    own->pool_max = (int)pool_max;
    own->spin_us = (int)spin_us;
    return status;
}

/*
 * Writes the URL without the options that were used to out, which has room for
 * all of it: what remains is libpq's. Marks those as used that libpq knows.
 */
static void cut_options(const char *text, syncguard_url *url, char *out)
{
    const char *from = text + strcspn(text, "?");
    size_t at = (size_t)(from - text);
    char separator = '?';
    size_t i;

    memcpy(out, text, at);
    for (i = 0; i < url->option_count && *from; i++) {
        size_t length = strcspn(from + 1, "&");

        if (!url->options[i].used) {
            out[at++] = separator;
            separator = '&';
            memcpy(out + at, from + 1, length);
            at += length;
            url->options[i].used = sg_pg_is_parameter(url->options[i].name);
        }
        from += 1 + length;
    }
    out[at] = '\0';
}

/* Reads a URL; *text (wiped and freed by the caller) is what libpq gets. */
static syncguard_status read_url(const char *given, syncguard_url **url, char **text,
                                 const syncguard_options *options, syncguard_options *common,
                                 syncguard_postgres_options *own, syncguard_error *err)
{
    syncguard_status status = syncguard_url_parse(given, url, err);

    if (status == SYNCGUARD_OK)
        status = sg_pg_url_check(*url, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_options_read(options, common, err);
    if (status == SYNCGUARD_OK)
        status = read_url_options(*url, common, own, err);
    if (status != SYNCGUARD_OK)
        return status;
    *text = syncguard_malloc(strlen(given) + 1);
    if (!*text)
        return syncguard_fail_memory(err);
    cut_options(given, *url, *text);
    own->conninfo = *text;
    return syncguard_url_done(*url, err);
}

static void wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    syncguard_free(text);
}

static syncguard_status open_url(const char *text, const syncguard_options *options,
                                 syncguard_backend **out, syncguard_error *err)
{
    syncguard_postgres_options own = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    syncguard_options common;
    syncguard_url *url = NULL;
    char *rest = NULL;
    syncguard_status status = read_url(text, &url, &rest, options, &common, &own, err);

    if (status == SYNCGUARD_OK)
        status = syncguard_postgres_open(&own, &common, out, err);
    wipe(rest);
    syncguard_url_free(url);
    return status;
}

static syncguard_status setup_url(const char *text, const syncguard_options *options,
                                  syncguard_print_fn print, void *print_context,
                                  syncguard_error *err)
{
    syncguard_postgres_options own = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    syncguard_options common;
    syncguard_url *url = NULL;
    char *rest = NULL;
    syncguard_status status = read_url(text, &url, &rest, options, &common, &own, err);

    if (status == SYNCGUARD_OK)
        status = syncguard_postgres_setup(&own, &common, print, print_context, err);
    wipe(rest);
    syncguard_url_free(url);
    return status;
}

static const char *const schemes[] = {"postgres", "postgresql", NULL};

SYNCGUARD_API extern const syncguard_module syncguard_module_postgres;
const syncguard_module syncguard_module_postgres = {
    .abi = SYNCGUARD_ABI,
    .name = "postgres",
    .schemes = schemes,
    .open = open_url,
    .setup = setup_url,
};

syncguard_status syncguard_postgres_register(syncguard_error *err)
{
    return syncguard_module_register(&syncguard_module_postgres, err);
}
