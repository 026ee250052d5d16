/*
 * libpq's connection parameters, as far as they can be checked before connecting: what libpq would
 * refuse is InvalidArgument when the handle is opened. The option is named, its value never is.
 */
#include <ctype.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pg.h"
#include "syncguard/sys/environment.h"

/* words: NULL for a whole number. */
typedef struct parameter {
    const char *keyword;
    const char *variable;
    const char *const *words;
} parameter;

static const char *const ssl_modes[] = {"disable",   "allow",       "prefer", "require",
                                        "verify-ca", "verify-full", NULL};
static const char *const session_kinds[] = {"any",     "read-write",     "read-only", "primary",
                                            "standby", "prefer-standby", NULL};
static const char *const wishes[] = {"disable", "prefer", "require", NULL};

static const parameter parameters[] = {
    {"sslmode", "PGSSLMODE", ssl_modes},
    {"target_session_attrs", "PGTARGETSESSIONATTRS", session_kinds},
    {"channel_binding", "PGCHANNELBINDING", wishes},
    {"gssencmode", "PGGSSENCMODE", wishes},
    {"connect_timeout", "PGCONNECT_TIMEOUT", NULL},
    {"keepalives", NULL, NULL},
    {"keepalives_idle", NULL, NULL},
    {"keepalives_interval", NULL, NULL},
    {"keepalives_count", NULL, NULL},
    {"tcp_user_timeout", NULL, NULL},
};

static bool is_number(const char *text, long low, long high)
{
    char *end = NULL;
    long value = strtol(text, &end, 10);

    return end != text && !*end && value >= low && value <= high;
}

static bool is_word(const char *text, const char *const *words)
{
    while (*words && strcmp(*words, text) != 0)
        words++;
    return *words != NULL;
}

static const char *value_of(const PQconninfoOption *all, const parameter *p)
{
    for (; all->keyword; all++) {
        if (strcmp(all->keyword, p->keyword) == 0 && all->val && *all->val)
            return all->val;
    }
    return p->variable ? syncguard_environment(p->variable) : NULL;
}

static syncguard_status refuse(syncguard_error *err, const char *keyword, const char *why)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "option %s %s", keyword, why);
}

syncguard_status sg_pg_parameters_check(const PQconninfoOption *all, syncguard_error *err)
{
    size_t i;

    for (i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        const char *value = value_of(all, &parameters[i]);

        if (value && parameters[i].words && !is_word(value, parameters[i].words))
            return refuse(err, parameters[i].keyword, "has a value that libpq does not know");
        if (value && !parameters[i].words && !is_number(value, -1, INT32_MAX))
            return refuse(err, parameters[i].keyword, "must be a whole number");
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_pg_port_check(const char *port, syncguard_error *err)
{
    return !port || is_number(port, 1, 65535) ? SYNCGUARD_OK
                                              : refuse(err, "port", "must be 1 to 65535");
}

/* ---- the URL ----------------------------------------------------------------------------- */

static const char *option_of(const syncguard_url *url, const char *name)
{
    size_t i;

    for (i = 0; i < url->option_count; i++) {
        if (strcmp(url->options[i].name, name) == 0)
            return url->options[i].value;
    }
    return NULL;
}

static bool is_true(const char *value)
{
    return value && (strcmp(value, "1") == 0 || strcmp(value, "true") == 0);
}

/* A colon behind the brackets of an IPv6 address, if there are any. */
static bool has_port(const char *hosts)
{
    const char *bracket = hosts ? strrchr(hosts, ']') : NULL;

    return hosts && strchr(bracket ? bracket : hosts, ':') != NULL;
}

syncguard_status sg_pg_url_check(const syncguard_url *url, syncguard_error *err)
{
    const struct {
        const char *name;
        bool given;
    } parts[] = {
        {"host", url->hosts && *url->hosts},
        {"port", has_port(url->hosts)},
        {"user", url->user && *url->user},
        {"password", url->password && *url->password},
        {"dbname", url->path && url->path[0] && url->path[1]},
    };
    size_t i;

    for (i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].given && option_of(url, parts[i].name))
            return refuse(err, parts[i].name, "is given twice: before the '?' and behind it");
    }
    if (option_of(url, "ssl") && option_of(url, "sslmode"))
        return refuse(err, "ssl", "contradicts sslmode: give one of them");
    if (is_true(option_of(url, "pooler")) && is_true(option_of(url, "listen")))
        return refuse(err, "listen", "contradicts pooler");
    if (is_true(option_of(url, "pooler")) && is_true(option_of(url, "prepared")))
        return refuse(err, "prepared", "contradicts pooler");
    return SYNCGUARD_OK;
}

/* ---- the password file ------------------------------------------------------------------- */

/* The file that libpq would read if none is given. */
static bool default_file(char *out, size_t size)
{
    const char *home = PQlibVersion() >= 160000 ? syncguard_environment("HOME") : NULL;
    struct passwd entry;
    struct passwd *found = NULL;
    char buffer[4096];

    if (!home && getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found)
        home = found->pw_dir;
    return home && (size_t)snprintf(out, size, "%s/.pgpass", home) < size;
}

bool sg_pg_passfile_refused(const PQconninfoOption *all)
{
    static const parameter password = {"password", "PGPASSWORD", NULL};
    static const parameter passfile = {"passfile", "PGPASSFILE", NULL};
    const char *given = value_of(all, &passfile);
    char path[1024];
    struct stat file;

    if (value_of(all, &password) || (!given && !default_file(path, sizeof path)))
        return false;
    return stat(given ? given : path, &file) == 0 &&
           (!S_ISREG(file.st_mode) || (file.st_mode & (S_IRWXG | S_IRWXO)) != 0);
}
