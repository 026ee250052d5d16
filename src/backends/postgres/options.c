/*
 * Options and URLs. A URL is one of libpq with our options added to its query: they are read and
 * cut out, and the rest is left to libpq.
 */
#include <string.h>

#include "options.h"
#include "parameters.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/options.h"

#define MAX_POOL 1000

void syncguard_postgres_options_init(syncguard_postgres_options *options, size_t size)
{
    static const syncguard_postgres_options defaults = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

static syncguard_status pg_options_refuse(syncguard_error *err, const char *option, const char *why)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "option %s %s", option, why);
}

static syncguard_status pg_options_read_tables(sg_pg_config *out, syncguard_error *err)
{
    const char *locks =
        out->own.lock_table != NULL ? out->own.lock_table : SYNCGUARD_POSTGRES_LOCK_TABLE;
    const char *fences =
        out->own.fence_table != NULL ? out->own.fence_table : SYNCGUARD_POSTGRES_FENCE_TABLE;
    syncguard_status status = sg_pg_table_read(locks, "lock_table", &out->locks, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_table_read(fences, "fence_table", &out->fences, err);
    if (status == SYNCGUARD_OK && strcmp(out->locks.quoted, out->fences.quoted) == 0)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "options lock_table and fence_table must differ");
    return status;
}

syncguard_status sg_pg_options_read(const syncguard_postgres_options *own,
                                    const syncguard_options *common, sg_pg_config *out,
                                    syncguard_error *err)
{
    syncguard_status status = syncguard_options_read(common, &out->common, err);
    syncguard_postgres_options_init(&out->own, sizeof out->own);
    if (status == SYNCGUARD_OK)
        status = syncguard_struct_read(own, &out->own, sizeof out->own,
                                       SYNCGUARD_SIZE_UP_TO(syncguard_postgres_options, listen),
                                       "postgres_options", err);
    if (status != SYNCGUARD_OK)
        return status;
    if (out->own.pool_max < 1 || out->own.pool_max > MAX_POOL)
        return pg_options_refuse(err, "pool_max", "must be 1 to 1000");
    if (out->own.pooler) {
        out->own.prepared = false;
        out->own.listen = false;
    }
    return pg_options_read_tables(out, err);
}

syncguard_status sg_pg_options_pool(const sg_pg_config *config, sg_pg_pool **out,
                                    syncguard_error *err)
{
    int64_t timeout_ms = config->common.timeout_ms;
    sg_pg_target *target = NULL;
    syncguard_status status =
        sg_pg_target_read(config->own.conninfo, config->own.pooler ? 0 : timeout_ms, &target, err);
    if (status != SYNCGUARD_OK)
        return status;
    return sg_pg_pool_create(target, config->own.pool_max, timeout_ms, out, err);
}

/* ---- the URL ---- */

static const char *pg_url_find_option(const syncguard_url *url, const char *name)
{
    for (size_t i = 0; i < url->option_count; i++) {
        if (strcmp(url->options[i].name, name) == 0)
            return url->options[i].value;
    }
    return NULL;
}

static bool pg_option_is_true(const char *value)
{
    return value != NULL && (strcmp(value, "1") == 0 || strcmp(value, "true") == 0);
}

/* True if there is a colon, behind the brackets of an IPv6 address if there are any. */
static bool pg_url_has_port(const char *hosts)
{
    const char *bracket = hosts != NULL ? strrchr(hosts, ']') : NULL;
    return hosts != NULL && strchr(bracket != NULL ? bracket : hosts, ':') != NULL;
}

/* InvalidArgument for options that contradict the rest of the URL, or each other. */
static syncguard_status pg_url_check(const syncguard_url *url, syncguard_error *err)
{
    const struct {
        const char *name;
        bool given;
    } parts[] = {
        {"host", url->hosts != NULL && *url->hosts != 0},
        {"port", pg_url_has_port(url->hosts)},
        {"user", url->user != NULL && *url->user != 0},
        {"password", url->password != NULL && *url->password != 0},
        {"dbname", url->path != NULL && url->path[0] != 0 && url->path[1] != 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].given && pg_url_find_option(url, parts[i].name) != NULL)
            return pg_options_refuse(err, parts[i].name,
                                     "is given twice: before the '?' and behind it");
    }
    if (pg_url_find_option(url, "ssl") != NULL && pg_url_find_option(url, "sslmode") != NULL)
        return pg_options_refuse(err, "ssl", "contradicts sslmode: give one of them");
    if (pg_option_is_true(pg_url_find_option(url, "pooler")) &&
        pg_option_is_true(pg_url_find_option(url, "listen")))
        return pg_options_refuse(err, "listen", "contradicts pooler");
    if (pg_option_is_true(pg_url_find_option(url, "pooler")) &&
        pg_option_is_true(pg_url_find_option(url, "prepared")))
        return pg_options_refuse(err, "prepared", "contradicts pooler");
    return SYNCGUARD_OK;
}

static syncguard_status pg_url_read_own_options(syncguard_url *url, syncguard_postgres_options *own,
                                                syncguard_error *err)
{
    int64_t pool_max = own->pool_max;
    syncguard_status status = syncguard_url_int(url, "pool_max", 1, MAX_POOL, &pool_max, err);
    own->lock_table = syncguard_url_text(url, "lock_table");
    own->fence_table = syncguard_url_text(url, "fence_table");
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "pooler", &own->pooler, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "prepared", &own->prepared, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "listen", &own->listen, err);
    own->pool_max = (int)pool_max;
    return status;
}

/*
 * Writes the URL without the options that were used to out, which has room for all of it: the rest
 * is for libpq. Marks the options that libpq knows as used.
 */
static void pg_url_cut_options(const char *text, syncguard_url *url, char *out)
{
    const char *from = text + strcspn(text, "?");
    size_t at = (size_t)(from - text);
    memcpy(out, text, at);
    char separator = '?';
    for (size_t i = 0; i < url->option_count && *from != 0; i++) {
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

syncguard_status sg_pg_url_read(const char *text, const syncguard_options *common, sg_pg_url *out,
                                syncguard_error *err)
{
    memset(out, 0, sizeof *out);
    syncguard_postgres_options_init(&out->own, sizeof out->own);
    syncguard_status status = syncguard_url_parse(text, &out->url, err);
    if (status == SYNCGUARD_OK)
        status = pg_url_check(out->url, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_options_read(common, &out->common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_common(out->url, &out->common, err);
    if (status == SYNCGUARD_OK)
        status = pg_url_read_own_options(out->url, &out->own, err);
    if (status != SYNCGUARD_OK)
        return status;
    out->conninfo = syncguard_malloc(strlen(text) + 1);
    if (out->conninfo == NULL)
        return syncguard_fail_memory(err);
    pg_url_cut_options(text, out->url, out->conninfo);
    out->own.conninfo = out->conninfo;
    return syncguard_url_done(out->url, err);
}

void sg_pg_url_free(sg_pg_url *url)
{
    syncguard_free_secret(url->conninfo);
    syncguard_url_free(url->url);
}
