/*
 * Where to connect: a connection string of libpq taken apart, so that hosts can
 * be tried one by one with a time limit each, and the defaults that differ from
 * libpq's: TLS with verification to remote hosts, UTF-8, quiet plans.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pg.h"
#include "syncguard/sys/environment.h"

/* In place of a password file that libpq would only complain about, on stderr. */
#define NO_FILE "/dev/null/none"
/* Room for what we add to the given parameters. */
#define EXTRA_PARAMETERS 12

/* A fixed plan per statement (each finds one row by its key), looked for once. */
#define PLAN_SETTINGS "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"
/* These come after the user's: the last one counts, and we rely on them. */
#define OWN_SETTINGS                                                                               \
    "-c default_transaction_isolation=read\\ committed "                                           \
    "-c client_min_messages=warning -c lock_timeout=%lld -c statement_timeout=%lld"

static void wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    syncguard_free(text);
}

void sg_pg_target_free(sg_pg_target *target)
{
    size_t i;

    if (!target)
        return;
    for (i = 0; target->keywords && target->values && target->keywords[i]; i++) {
        syncguard_free(target->keywords[i]);
        wipe(target->values[i]);
    }
    syncguard_free(target->keywords);
    syncguard_free(target->values);
    for (i = 0; i < SG_PG_MAX_HOSTS; i++) {
        syncguard_free(target->hosts[i]);
        syncguard_free(target->hostaddrs[i]);
        syncguard_free(target->ports[i]);
    }
    syncguard_free(target);
}

bool sg_pg_is_parameter(const char *name)
{
    PQconninfoOption *all = PQconndefaults();
    PQconninfoOption *each;
    bool found = strcmp(name, "ssl") == 0; /* an alias that only URIs have */

    for (each = all; each && each->keyword && !found; each++)
        found = strcmp(each->keyword, name) == 0;
    PQconninfoFree(all);
    return found;
}

/* Splits "a,b,,c": count of parts, empty ones as NULL; -1 without memory, -2 if too many. */
static int split(const char *text, char *parts[SG_PG_MAX_HOSTS])
{
    int count = 0;

    if (!text)
        return 0;
    for (;;) {
        size_t length = strcspn(text, ",");

        if (count == SG_PG_MAX_HOSTS)
            return -2;
        if (length) {
            parts[count] = syncguard_strndup(text, length);
            if (!parts[count])
                return -1;
        }
        count++;
        if (!text[length])
            return count;
        text += length + 1;
    }
}

static bool is_local(const char *host)
{
    struct in_addr address;

    return !host || host[0] == '/' || host[0] == '@' || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0 ||
           (strncmp(host, "127.", 4) == 0 && inet_pton(AF_INET, host, &address) == 1);
}

static bool all_local(const sg_pg_target *target)
{
    int i;

    for (i = 0; i < target->host_count; i++) {
        if (!is_local(target->hostaddrs[i] ? target->hostaddrs[i] : target->hosts[i]))
            return false;
    }
    return true;
}

static syncguard_status add(sg_pg_target *target, const char *keyword, const char *value,
                            syncguard_error *err)
{
    size_t i = 0;

    while (target->keywords[i])
        i++;
    target->keywords[i] = syncguard_strdup(keyword);
    target->values[i] = syncguard_strdup(value);
    if (target->keywords[i] && target->values[i])
        return SYNCGUARD_OK;
    syncguard_free(target->keywords[i]);
    wipe(target->values[i]);
    target->keywords[i] = NULL;
    target->values[i] = NULL;
    return syncguard_fail_memory(err);
}

static const char *given(const PQconninfoOption *all, const char *keyword)
{
    for (; all->keyword; all++) {
        if (strcmp(all->keyword, keyword) == 0)
            return all->val && *all->val ? all->val : NULL;
    }
    return NULL;
}

/* A value of the connection string, else of the environment. */
static const char *given_or_env(const PQconninfoOption *all, const char *keyword, const char *name)
{
    const char *value = given(all, keyword);

    if (!value)
        value = syncguard_environment(name);
    return value;
}

static bool has_service(const PQconninfoOption *all)
{
    return given_or_env(all, "service", "PGSERVICE") != NULL;
}

/* The same for what a service may say too: that comes before the environment, and only libpq reads
 * it. */
static const char *given_or_late_env(const PQconninfoOption *all, const char *keyword,
                                     const char *name)
{
    return has_service(all) ? given(all, keyword) : given_or_env(all, keyword, name);
}

static syncguard_status read_hosts(const PQconninfoOption *all, sg_pg_target *target,
                                   syncguard_error *err)
{
    int hosts = split(given_or_late_env(all, "host", "PGHOST"), target->hosts);
    int addresses = split(given_or_late_env(all, "hostaddr", "PGHOSTADDR"), target->hostaddrs);
    int ports = split(given_or_late_env(all, "port", "PGPORT"), target->ports);
    int i;

    if (hosts == -1 || addresses == -1 || ports == -1)
        return syncguard_fail_memory(err);
    target->host_count = hosts > addresses ? hosts : addresses;
    if (target->host_count == 0)
        target->host_count = 1;
    if (hosts == -2 || addresses == -2 || ports == -2 ||
        (hosts > 0 && addresses > 0 && hosts != addresses) ||
        (ports > 1 && ports != target->host_count))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "hosts, addresses and ports differ in number, or are more than %d",
                              SG_PG_MAX_HOSTS);
    for (i = 0; i < ports; i++) {
        if (sg_pg_port_check(target->ports[i], err) != SYNCGUARD_OK)
            return SYNCGUARD_E_INVALID_ARGUMENT;
    }
    for (i = 1; ports == 1 && i < target->host_count; i++) {
        if (!target->ports[0])
            break;
        target->ports[i] = syncguard_strdup(target->ports[0]);
        if (!target->ports[i])
            return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

/*
 * Verified TLS needs certificates to trust. libpq looks for the user's file;
 * where there is none, the system's are better than a refusal.
 */
static syncguard_status add_roots(const PQconninfoOption *all, sg_pg_target *target,
                                  syncguard_error *err)
{
    static const char system_roots[] = "/etc/ssl/certs/ca-certificates.crt";
    const char *home = syncguard_environment("HOME");
    char path[1024];

    if (given_or_env(all, "sslrootcert", "PGSSLROOTCERT"))
        return SYNCGUARD_OK;
    snprintf(path, sizeof path, "%s/.postgresql/root.crt", home ? home : "");
    if (access(path, R_OK) == 0)
        return SYNCGUARD_OK;
    if (PQlibVersion() >= 160000)
        return add(target, "sslrootcert", "system", err);
    if (access(system_roots, R_OK) == 0)
        return add(target, "sslrootcert", system_roots, err);
    return SYNCGUARD_OK;
}

/* A peer that vanished without a word is noticed within a minute, also by who only listens. */
static syncguard_status add_keepalives(const PQconninfoOption *all, sg_pg_target *target,
                                       syncguard_error *err)
{
    static const char *const settings[][2] = {
        {"keepalives_idle", "30"}, {"keepalives_interval", "10"}, {"keepalives_count", "3"}};
    syncguard_status status = SYNCGUARD_OK;
    size_t i;

    for (i = 0; i < 3 && status == SYNCGUARD_OK; i++) {
        if (!given(all, settings[i][0]))
            status = add(target, settings[i][0], settings[i][1], err);
    }
    return status;
}

static syncguard_status add_defaults(const PQconninfoOption *all, int64_t session_ms,
                                     sg_pg_target *target, syncguard_error *err)
{
    const char *own = given_or_late_env(all, "options", "PGOPTIONS");
    const char *mode = given_or_env(all, "sslmode", "PGSSLMODE");
    bool service = has_service(all);
    /* With a service file the host is not known here: it counts as remote. */
    bool remote = !all_local(target) || (service && !target->hosts[0]);
    syncguard_status status = SYNCGUARD_OK;
    char settings[1024] = "";

    /* Options of ours would replace those of the service. */
    if (service)
        session_ms = 0;
    if (mode && strcmp(mode, "verify-full") == 0 && !service) {
        status = add_roots(all, target, err);
    } else if (!mode) {
        /* Nobody listens on a loopback: plain unless the server insists. */
        status = add(target, "sslmode", remote ? "verify-full" : "allow", err);
        if (status == SYNCGUARD_OK && remote && !service)
            status = add_roots(all, target, err);
    }
    if (status == SYNCGUARD_OK && target->host_count > 1 &&
        !given_or_env(all, "target_session_attrs", "PGTARGETSESSIONATTRS"))
        status = add(target, "target_session_attrs", "read-write", err);
    if (status == SYNCGUARD_OK)
        status = add(target, "client_encoding", "UTF8", err);
    if (status == SYNCGUARD_OK)
        status = add_keepalives(all, target, err);
    if (status == SYNCGUARD_OK)
        status = add(target, "fallback_application_name", "syncguard", err);
    if (status == SYNCGUARD_OK && target->passfile_refused)
        status = add(target, "passfile", NO_FILE, err);
    if (status == SYNCGUARD_OK && (session_ms > 0 || own)) {
        int length = snprintf(settings, sizeof settings,
                              session_ms > 0 ? PLAN_SETTINGS " %s " OWN_SETTINGS : "%s",
                              own ? own : "", (long long)session_ms, (long long)session_ms);

        target->session_ms = session_ms;
        if ((size_t)length >= sizeof settings)
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "option options is too long");
        status = add(target, "options", settings, err);
    }
    return status;
}

static bool taken_apart(const char *keyword)
{
    static const char *const words[] = {"host",    "hostaddr",        "port",
                                        "options", "connect_timeout", "client_encoding"};
    size_t i;

    for (i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(keyword, words[i]) == 0)
            return true;
    }
    return false;
}

static syncguard_status build(const PQconninfoOption *all, int64_t session_ms, sg_pg_target *target,
                              syncguard_error *err)
{
    const char *timeout = given_or_env(all, "connect_timeout", "PGCONNECT_TIMEOUT");
    syncguard_status status = SYNCGUARD_OK;
    size_t count = 0;
    size_t i;

    while (all[count].keyword)
        count++;
    target->service = has_service(all);
    target->passfile_refused = !target->service && sg_pg_passfile_refused(all);
    target->keywords = syncguard_calloc(count + EXTRA_PARAMETERS, sizeof *target->keywords);
    target->values = syncguard_calloc(count + EXTRA_PARAMETERS, sizeof *target->values);
    if (!target->keywords || !target->values)
        return syncguard_fail_memory(err);
    for (i = 0; i < count && status == SYNCGUARD_OK; i++) {
        bool dropped = target->passfile_refused && strcmp(all[i].keyword, "passfile") == 0;

        if (all[i].val && *all[i].val && !dropped && !taken_apart(all[i].keyword))
            status = add(target, all[i].keyword, all[i].val, err);
    }
    if (timeout && isdigit((unsigned char)*timeout))
        target->connect_timeout_ms = strtol(timeout, NULL, 10) % 86400 * 1000;
    if (status == SYNCGUARD_OK)
        status = read_hosts(all, target, err);
    if (status == SYNCGUARD_OK)
        status = add_defaults(all, session_ms, target, err);
    return status;
}

syncguard_status sg_pg_target_read(const char *conninfo, int64_t session_ms, sg_pg_target **out,
                                   syncguard_error *err)
{
    sg_pg_target *target = NULL;
    PQconninfoOption *all = NULL;
    char *words = NULL;
    syncguard_status status;

    *out = NULL;
    /* libpq reads them all by itself. */
    status = syncguard_environment_refuse("PG", err);
    if (status != SYNCGUARD_OK)
        return status;
    all = PQconninfoParse(conninfo ? conninfo : "", &words);
    /* The words may quote the string with its password. */
    PQfreemem(words);
    if (!all)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the connection string is not one that libpq can read");
    target = syncguard_calloc(1, sizeof *target);
    status = target ? sg_pg_parameters_check(all, err) : syncguard_fail_memory(err);
    if (status == SYNCGUARD_OK)
        status = build(all, session_ms, target, err);
    PQconninfoFree(all);
    if (status == SYNCGUARD_OK) {
        *out = target;
        target = NULL;
    }
    sg_pg_target_free(target);
    return status;
}
