/*
 * Checks connection parameters of libpq as far as possible before connecting: a value that libpq
 * would refuse is InvalidArgument when the handle is opened. Errors name the option, never its
 * value.
 */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parameters.h"
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
static const char *const preferences[] = {"disable", "prefer", "require", NULL};

static const parameter parameters[] = {
    {"sslmode", "PGSSLMODE", ssl_modes},
    {"target_session_attrs", "PGTARGETSESSIONATTRS", session_kinds},
    {"channel_binding", "PGCHANNELBINDING", preferences},
    {"gssencmode", "PGGSSENCMODE", preferences},
    {"connect_timeout", "PGCONNECT_TIMEOUT", NULL},
    {"keepalives", NULL, NULL},
    {"keepalives_idle", NULL, NULL},
    {"keepalives_interval", NULL, NULL},
    {"keepalives_count", NULL, NULL},
    {"tcp_user_timeout", NULL, NULL},
};

static bool parameter_is_number(const char *text, long low, long high)
{
    char *end = NULL;
    long value = strtol(text, &end, 10);
    return end != text && *end == 0 && value >= low && value <= high;
}

static bool parameter_is_one_of(const char *text, const char *const *words)
{
    while (*words != NULL && strcmp(*words, text) != 0)
        words++;
    return *words != NULL;
}

const char *sg_pg_parameter(const PQconninfoOption *all, const char *keyword)
{
    while (all->keyword != NULL && strcmp(all->keyword, keyword) != 0)
        all++;
    return all->keyword != NULL && all->val != NULL && *all->val != 0 ? all->val : NULL;
}

const char *sg_pg_parameter_or_env(const PQconninfoOption *all, const char *keyword,
                                   const char *variable)
{
    const char *value = sg_pg_parameter(all, keyword);
    return value != NULL || variable == NULL ? value : syncguard_environment(variable);
}

bool sg_pg_is_parameter(const char *name)
{
    PQconninfoOption *all = PQconndefaults();
    bool found = strcmp(name, "ssl") == 0; /* an alias that only URIs have */
    for (PQconninfoOption *each = all; each != NULL && each->keyword != NULL && !found; each++)
        found = strcmp(each->keyword, name) == 0;
    PQconninfoFree(all);
    return found;
}

static syncguard_status parameter_refuse(syncguard_error *err, const char *keyword, const char *why)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "option %s %s", keyword, why);
}

syncguard_status sg_pg_parameters_check(const PQconninfoOption *all, syncguard_error *err)
{
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        const char *value =
            sg_pg_parameter_or_env(all, parameters[i].keyword, parameters[i].variable);
        if (value != NULL && parameters[i].words != NULL &&
            !parameter_is_one_of(value, parameters[i].words))
            return parameter_refuse(err, parameters[i].keyword,
                                    "has a value that libpq does not know");
        if (value != NULL && parameters[i].words == NULL &&
            !parameter_is_number(value, -1, INT32_MAX))
            return parameter_refuse(err, parameters[i].keyword, "must be a whole number");
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_pg_port_check(const char *port, syncguard_error *err)
{
    return port == NULL || parameter_is_number(port, 1, 65535)
               ? SYNCGUARD_OK
               : parameter_refuse(err, "port", "must be 1 to 65535");
}

/* The file that libpq would read if none is given. */
static bool passfile_default_path(char *out, size_t size)
{
    const char *home = PQlibVersion() >= 160000 ? syncguard_environment("HOME") : NULL;
    struct passwd entry;
    struct passwd *found = NULL;
    char buffer[4096];
    if (home == NULL && getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 &&
        found != NULL)
        home = found->pw_dir;
    return home != NULL && (size_t)snprintf(out, size, "%s/.pgpass", home) < size;
}

bool sg_pg_passfile_refused(const PQconninfoOption *all)
{
    const char *given = sg_pg_parameter_or_env(all, "passfile", "PGPASSFILE");
    char path[1024];
    if (sg_pg_parameter_or_env(all, "password", "PGPASSWORD") != NULL ||
        (given == NULL && !passfile_default_path(path, sizeof path)))
        return false;
    struct stat file;
    return stat(given != NULL ? given : path, &file) == 0 &&
           (!S_ISREG(file.st_mode) || (file.st_mode & (S_IRWXG | S_IRWXO)) != 0);
}
