/*
 * Where to connect: splits a connection string of libpq, so that hosts can be tried one by one with
 * a time limit each, and adds the defaults that differ from those of libpq: TLS with verification
 * to remote hosts, UTF-8, fixed plans.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parameters.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/environment.h"
#include "target.h"

/* Replaces a password file that libpq would only print a warning about. */
#define NO_FILE "/dev/null/none"
/* Room for what we add to the given parameters. */
#define EXTRA_PARAMETERS 12
/* The server gives up before the caller does: by a twentieth of the time, but at most by this. */
#define ANSWER_MS 50

/* A fixed plan per statement (each finds one row by its key), made once. */
#define PLAN_SETTINGS "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"
/* These come after the user's settings, because the last value counts and the statements rely on
 * these. */
#define OWN_SETTINGS                                                                               \
    "-c default_transaction_isolation=read\\ committed "                                           \
    "-c client_min_messages=warning -c lock_timeout=%lld -c statement_timeout=%lld"

sg_pg_time_limits sg_pg_time_limits_for(int64_t left_ms)
{
    left_ms = left_ms < INT32_MAX ? left_ms : INT32_MAX;
    int64_t answer_ms = left_ms / 20 < ANSWER_MS ? left_ms / 20 : ANSWER_MS;
    sg_pg_time_limits limits;
    limits.lock_ms = left_ms - answer_ms > 1 ? left_ms - answer_ms : 1;
    limits.statement_ms = limits.lock_ms + (answer_ms + 1) / 2;
    return limits;
}

void sg_pg_target_free(sg_pg_target *target)
{
    if (target == NULL)
        return;
    for (size_t i = 0;
         target->keywords != NULL && target->values != NULL && target->keywords[i] != NULL; i++) {
        syncguard_free(target->keywords[i]);
        syncguard_free_secret(target->values[i]);
    }
    syncguard_free(target->keywords);
    syncguard_free(target->values);
    for (size_t i = 0; i < SG_PG_MAX_HOSTS; i++) {
        syncguard_free(target->hosts[i]);
        syncguard_free(target->hostaddrs[i]);
        syncguard_free(target->ports[i]);
    }
    syncguard_free(target);
}

/* ---- hosts ---- */

/* Splits "a,b,,c" into parts; empty ones are NULL. Returns their number; -1 if out of memory, -2 if
 * there are too many. */
static int target_split_list(const char *text, char *parts[SG_PG_MAX_HOSTS])
{
    if (text == NULL)
        return 0;
    int count = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        if (count == SG_PG_MAX_HOSTS)
            return -2;
        if (length != 0) {
            parts[count] = syncguard_strndup(text, length);
            if (parts[count] == NULL)
                return -1;
        }
        count++;
        if (text[length] == 0)
            return count;
        text += length + 1;
    }
}

static bool pg_host_is_local(const char *host)
{
    struct in_addr address;
    return host == NULL || host[0] == '/' || host[0] == '@' || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0 ||
           (strncmp(host, "127.", 4) == 0 && inet_pton(AF_INET, host, &address) == 1);
}

static bool target_is_all_local(const sg_pg_target *target)
{
    for (int i = 0; i < target->host_count; i++) {
        if (!pg_host_is_local(target->hostaddrs[i] != NULL ? target->hostaddrs[i]
                                                           : target->hosts[i]))
            return false;
    }
    return true;
}

static bool parameters_have_service(const PQconninfoOption *all)
{
    return sg_pg_parameter_or_env(all, "service", "PGSERVICE") != NULL;
}

/* For parameters that a service may set too: the service has precedence over the environment, and
 * only libpq reads it. */
static const char *parameter_unless_service(const PQconninfoOption *all, const char *keyword,
                                            const char *variable)
{
    return sg_pg_parameter_or_env(all, keyword, parameters_have_service(all) ? NULL : variable);
}

static syncguard_status target_read_hosts(const PQconninfoOption *all, sg_pg_target *target,
                                          syncguard_error *err)
{
    int hosts = target_split_list(parameter_unless_service(all, "host", "PGHOST"), target->hosts);
    int addresses = target_split_list(parameter_unless_service(all, "hostaddr", "PGHOSTADDR"),
                                      target->hostaddrs);
    int ports = target_split_list(parameter_unless_service(all, "port", "PGPORT"), target->ports);
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
    for (int i = 0; i < ports; i++) {
        if (sg_pg_port_check(target->ports[i], err) != SYNCGUARD_OK)
            return SYNCGUARD_E_INVALID_ARGUMENT;
    }
    for (int i = 1; ports == 1 && target->ports[0] != NULL && i < target->host_count; i++) {
        target->ports[i] = syncguard_strdup(target->ports[0]);
        if (target->ports[i] == NULL)
            return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

/* ---- parameters ---- */

/* False without memory. */
static bool target_add_parameter(sg_pg_target *target, const char *keyword, const char *value)
{
    size_t i = 0;
    while (target->keywords[i] != NULL)
        i++;
    target->values[i] = syncguard_strdup(value);
    target->keywords[i] = target->values[i] != NULL ? syncguard_strdup(keyword) : NULL;
    if (target->keywords[i] != NULL)
        return true;
    syncguard_free_secret(target->values[i]);
    target->values[i] = NULL;
    return false;
}

/* Verified TLS needs trusted certificates. libpq reads the file of the user; if there is none, that
 * of the system is used. */
static bool target_add_roots(const PQconninfoOption *all, sg_pg_target *target)
{
    static const char system_roots[] = "/etc/ssl/certs/ca-certificates.crt";
    const char *home = syncguard_environment("HOME");
    char path[1024];
    snprintf(path, sizeof path, "%s/.postgresql/root.crt", home != NULL ? home : "");
    if (sg_pg_parameter_or_env(all, "sslrootcert", "PGSSLROOTCERT") != NULL ||
        access(path, R_OK) == 0)
        return true;
    if (PQlibVersion() >= 160000)
        return target_add_parameter(target, "sslrootcert", "system");
    return access(system_roots, R_OK) != 0 ||
           target_add_parameter(target, "sslrootcert", system_roots);
}

/* TLS is verified to remote hosts. On a loopback, where no other machine can listen, the connection
 * is plain unless the server requires TLS. With a service file the host is not known here, and
 * counts as remote. */
static bool target_add_tls(const PQconninfoOption *all, sg_pg_target *target)
{
    const char *mode = sg_pg_parameter_or_env(all, "sslmode", "PGSSLMODE");
    bool remote = !target_is_all_local(target) || (target->service && target->hosts[0] == NULL);
    bool verified = mode != NULL ? strcmp(mode, "verify-full") == 0 : remote;
    if (mode == NULL && !target_add_parameter(target, "sslmode", remote ? "verify-full" : "allow"))
        return false;
    return !verified || target->service || target_add_roots(all, target);
}

static bool target_has_tcp_host(const sg_pg_target *target)
{
    for (int i = 0; i < target->host_count; i++) {
        const char *host = target->hosts[i];
        if (target->hostaddrs[i] != NULL || (host != NULL && host[0] != '/' && host[0] != '@'))
            return true;
    }
    return false;
}

/* Checked here because libpq reads the file only when it connects, and its message about the file
 * is redacted. Without verification the file may be missing. */
static syncguard_status target_check_roots(const PQconninfoOption *all, const sg_pg_target *target,
                                           syncguard_error *err)
{
    const char *given = sg_pg_parameter(all, "sslrootcert");
    const char *path = parameter_unless_service(all, "sslrootcert", "PGSSLROOTCERT");
    const char *mode = sg_pg_parameter_or_env(all, "sslmode", "PGSSLMODE");
    bool verified = mode != NULL ? strncmp(mode, "verify-", 7) == 0 : !target_is_all_local(target);
    struct stat about;
    if (path == NULL || !verified || !target_has_tcp_host(target) ||
        (PQlibVersion() >= 160000 && strcmp(path, "system") == 0))
        return SYNCGUARD_OK;
    const char *why = NULL;
    if (stat(path, &about) != 0 || faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) != 0)
        why = syncguard_errno_text(errno);
    else if (!S_ISREG(about.st_mode))
        why = "it is not a regular file";
    if (why == NULL)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the file given by %s cannot be read: %s",
                          given != NULL ? "option sslrootcert" : "PGSSLROOTCERT", why);
}

/* keepalives: a peer that vanished is noticed within a minute, also by the listening connection. */
static bool target_add_defaults(const PQconninfoOption *all, sg_pg_target *target)
{
    static const struct {
        const char *keyword;
        const char *value;
    } defaults[] = {
        {"keepalives_idle", "30"},
        {"keepalives_interval", "10"},
        {"keepalives_count", "3"},
        {"fallback_application_name", "syncguard"},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        if (sg_pg_parameter(all, defaults[i].keyword) == NULL &&
            !target_add_parameter(target, defaults[i].keyword, defaults[i].value))
            return false;
    }
    if (target->host_count > 1 &&
        sg_pg_parameter_or_env(all, "target_session_attrs", "PGTARGETSESSIONATTRS") == NULL &&
        !target_add_parameter(target, "target_session_attrs", "read-write"))
        return false;
    if (target->passfile_refused && !target_add_parameter(target, "passfile", NO_FILE))
        return false;
    /* Without a password, OpenSSL would ask at the terminal for that of an encrypted sslkey. */
    if (!target->service && sg_pg_parameter(all, "sslpassword") == NULL &&
        !target_add_parameter(target, "sslpassword", "none"))
        return false;
    return target_add_parameter(target, "client_encoding", "UTF8");
}

/* Adds the settings of a session. Ours would replace those of a service, and are left out if there
 * is one. */
static syncguard_status target_add_settings(const PQconninfoOption *all, int64_t timeout_ms,
                                            sg_pg_target *target, syncguard_error *err)
{
    const char *given = parameter_unless_service(all, "options", "PGOPTIONS");
    bool ours = timeout_ms > 0 && !target->service;
    if (ours)
        target->session = sg_pg_time_limits_for(timeout_ms);
    if (!ours && given == NULL)
        return SYNCGUARD_OK;
    char settings[1024] = "";
    int length =
        snprintf(settings, sizeof settings, ours ? PLAN_SETTINGS " %s " OWN_SETTINGS : "%s",
                 given != NULL ? given : "", (long long)target->session.lock_ms,
                 (long long)target->session.statement_ms);
    if ((size_t)length >= sizeof settings)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option options is too long");
    return target_add_parameter(target, "options", settings) ? SYNCGUARD_OK
                                                             : syncguard_fail_memory(err);
}

/* True for parameters whose given value is not passed on. */
static bool target_replaces_parameter(const sg_pg_target *target, const char *keyword)
{
    static const char *const words[] = {"host",    "hostaddr",        "port",
                                        "options", "connect_timeout", "client_encoding"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(keyword, words[i]) == 0)
            return true;
    }
    return target->passfile_refused && strcmp(keyword, "passfile") == 0;
}

static syncguard_status target_build(const PQconninfoOption *all, int64_t timeout_ms,
                                     sg_pg_target *target, syncguard_error *err)
{
    const char *timeout = sg_pg_parameter_or_env(all, "connect_timeout", "PGCONNECT_TIMEOUT");
    size_t count = 0;
    while (all[count].keyword != NULL)
        count++;
    target->service = parameters_have_service(all);
    target->passfile_refused = !target->service && sg_pg_passfile_refused(all);
    target->keywords = syncguard_calloc(count + EXTRA_PARAMETERS, sizeof *target->keywords);
    target->values = syncguard_calloc(count + EXTRA_PARAMETERS, sizeof *target->values);
    if (target->keywords == NULL || target->values == NULL)
        return syncguard_fail_memory(err);
    for (size_t i = 0; i < count; i++) {
        if (all[i].val != NULL && *all[i].val != 0 &&
            !target_replaces_parameter(target, all[i].keyword) &&
            !target_add_parameter(target, all[i].keyword, all[i].val))
            return syncguard_fail_memory(err);
    }
    if (timeout != NULL && isdigit((unsigned char)*timeout))
        target->connect_timeout_ms = strtol(timeout, NULL, 10) % 86400 * 1000;
    syncguard_status status = target_read_hosts(all, target, err);
    if (status == SYNCGUARD_OK)
        status = target_check_roots(all, target, err);
    if (status == SYNCGUARD_OK &&
        (!target_add_tls(all, target) || !target_add_defaults(all, target)))
        status = syncguard_fail_memory(err);
    return status == SYNCGUARD_OK ? target_add_settings(all, timeout_ms, target, err) : status;
}

syncguard_status sg_pg_target_read(const char *conninfo, int64_t timeout_ms, sg_pg_target **out,
                                   syncguard_error *err)
{
    *out = NULL;
    /* libpq reads all variables of this prefix itself. */
    syncguard_status status = syncguard_environment_refuse("PG", err);
    if (status != SYNCGUARD_OK)
        return status;
    char *text = NULL;
    PQconninfoOption *all = PQconninfoParse(conninfo != NULL ? conninfo : "", &text);
    PQfreemem(text); /* it may quote the string with its password */
    if (all == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the connection string is not one that libpq can read");
    sg_pg_target *target = syncguard_calloc(1, sizeof *target);
    status = target != NULL ? sg_pg_parameters_check(all, err) : syncguard_fail_memory(err);
    if (status == SYNCGUARD_OK)
        status = target_build(all, timeout_ms, target, err);
    PQconninfoFree(all);
    if (status == SYNCGUARD_OK)
        *out = target;
    else
        sg_pg_target_free(target);
    return status;
}

/* ---- one host ---- */

static bool target_copy_text(const char *from, char **to)
{
    *to = from != NULL ? syncguard_strdup(from) : NULL;
    return from == NULL || *to != NULL;
}

static bool target_copy_parameters(const sg_pg_target *from, sg_pg_target *to)
{
    static const char role[] = "target_session_attrs";
    size_t count = 0;
    while (from->keywords[count] != NULL)
        count++;
    to->keywords = syncguard_calloc(count + 2, sizeof *to->keywords);
    to->values = syncguard_calloc(count + 2, sizeof *to->values);
    if (to->keywords == NULL || to->values == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(from->keywords[i], role) != 0 &&
            !target_add_parameter(to, from->keywords[i], from->values[i]))
            return false;
    }
    return target_add_parameter(to, role, "any");
}

syncguard_status sg_pg_target_of_host(const sg_pg_target *from, int host, sg_pg_target **out,
                                      syncguard_error *err)
{
    sg_pg_target *one = syncguard_calloc(1, sizeof *one);
    *out = NULL;
    if (one == NULL)
        return syncguard_fail_memory(err);
    one->host_count = 1;
    one->service = from->service;
    one->passfile_refused = from->passfile_refused;
    one->connect_timeout_ms = from->connect_timeout_ms;
    one->session = from->session;
    if (!target_copy_text(from->hosts[host], &one->hosts[0]) ||
        !target_copy_text(from->hostaddrs[host], &one->hostaddrs[0]) ||
        !target_copy_text(from->ports[host], &one->ports[0]) ||
        !target_copy_parameters(from, one)) {
        sg_pg_target_free(one);
        return syncguard_fail_memory(err);
    }
    *out = one;
    return SYNCGUARD_OK;
}
