/*
 * Maps SQLSTATE codes to statuses: by the code alone, never by the text of the server, which is not
 * passed on either (it may quote a key).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "errors.h"

typedef struct mapping {
    const char *prefix; /* of the code; the first match counts */
    syncguard_status status;
    const char *text;
} mapping;

#define UNAVAILABLE SYNCGUARD_E_SERVICE_UNAVAILABLE

static const mapping mappings[] = {
    {"08", UNAVAILABLE, "the connection to the server failed"},
    {SG_PG_OVERTAKEN, UNAVAILABLE, "the lock was extended again and again as it was taken over"},
    {"22003", SYNCGUARD_E_INTERNAL, "the stored record cannot be read"},
    {"25006", UNAVAILABLE, "the server takes no writes (a standby, or read-only by default)"},
    {"25P03", UNAVAILABLE, "the server ended the session"},
    {"25P04", UNAVAILABLE, "the server ended the session"},
    {"0A000", UNAVAILABLE, "the session's plan no longer fits the tables"},
    {"25", UNAVAILABLE, "the session was not in the state that we left it in"},
    {"26000", UNAVAILABLE, "a prepared statement got lost: see pooler=1"},
    {"42P05", UNAVAILABLE, "a prepared statement is another's: see pooler=1"},
    {"28", SYNCGUARD_E_AUTH_FAILED, "the server refused the credentials"},
    {"3D000", SYNCGUARD_E_INVALID_ARGUMENT, "the database does not exist"},
    {"3F000", SYNCGUARD_E_INVALID_ARGUMENT, "the schema of the tables does not exist"},
    {"40", UNAVAILABLE, "the server broke the transaction off in favour of another"},
    {"42501", SYNCGUARD_E_AUTH_FAILED, "the role lacks a right on the tables"},
    {"42P01", SYNCGUARD_E_INVALID_ARGUMENT, "the tables are missing: run syncguard setup"},
    {"42703", SYNCGUARD_E_INVALID_ARGUMENT, "the tables lack a column: run syncguard setup"},
    {"42P10", SYNCGUARD_E_INVALID_ARGUMENT, "the tables lack a unique key: run syncguard setup"},
    {"53300", SYNCGUARD_E_RATE_LIMITED, "the server has no connection left"},
    {"53400", SYNCGUARD_E_RATE_LIMITED, "a configured limit of the server was reached"},
    {"53", UNAVAILABLE, "the server is short of a resource"},
    {"55P03", SYNCGUARD_E_NETWORK_TIMEOUT, "a lock inside the server was not to be had in time"},
    {"57014", SYNCGUARD_E_NETWORK_TIMEOUT, "the server broke the statement off"},
    {"57", UNAVAILABLE, "the server is going down, coming up, or ended the session"},
    {"58", UNAVAILABLE, "the server's system failed"},
};

syncguard_status sg_pg_fail(syncguard_error *err, const char *sqlstate)
{
    if (sqlstate == NULL || *sqlstate == 0)
        return syncguard_fail(err, UNAVAILABLE, NULL, "the connection to the server was lost");
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++) {
        if (strncmp(sqlstate, mappings[i].prefix, strlen(mappings[i].prefix)) == 0)
            return syncguard_fail(err, mappings[i].status, sqlstate, "%s", mappings[i].text);
    }
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, sqlstate, "the server failed unexpectedly");
}

/*
 * Connection errors have their code in the message only: at the end of a line, if libpq reports
 * nothing else of the server's text (PQERRORS_SQLSTATE). Uses the last line with a code.
 */
static bool pg_error_find_sqlstate(const char *message, char out[6])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *line = message;
    bool found = false;
    while (*line != 0) {
        size_t length = strcspn(line, "\n");
        const char *code = line + length - 5;
        if (length > 8 && strspn(code, digits) == 5 && memcmp(code - 3, ":  ", 3) == 0) {
            memcpy(out, code, 5);
            out[5] = '\0';
            found = true;
        }
        line += length;
        line += strspn(line, "\n");
    }
    return found;
}

/* libpq does not report this, and it may be the reason why name resolution failed. */
static bool pg_descriptors_are_exhausted(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd < 0 && (errno == EMFILE || errno == ENFILE);
}

/* Copies the text of libpq and of the system for one attempt, without the quoted parts: these may
 * be values of options. */
static void pg_error_copy_reason(const char *message, char *out, size_t size)
{
    const char *from = strstr(message, "failed: ");
    from = from != NULL ? from + strlen("failed: ") : message;
    bool quoted = false;
    size_t at = 0;
    for (; *from != 0 && *from != '\n' && at + 4 < size; from++) {
        if (*from == '"')
            quoted = !quoted;
        if (*from == '"' && quoted)
            at += (size_t)snprintf(out + at, size - at, "...");
        else if (*from != '"' && !quoted)
            out[at++] = *from;
    }
    out[at] = '\0';
}

syncguard_status sg_pg_fail_connect(syncguard_error *err, PGconn *pg, bool service)
{
    const char *message = pg != NULL ? PQerrorMessage(pg) : "";
    if (pg == NULL)
        return syncguard_fail_memory(err);
    char code[6];
    if (pg_error_find_sqlstate(message, code) && strcmp(code, "08P01") == 0)
        return syncguard_fail(err, UNAVAILABLE, code,
                              "the server refuses the settings of the session: behind a "
                              "transaction pooler open with pooler=1");
    if (pg_error_find_sqlstate(message, code) && strcmp(code, "42501") == 0)
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, code,
                              "the role may not connect to the database: it lacks CONNECT");
    if (pg_error_find_sqlstate(message, code))
        return sg_pg_fail(err, code);
    if (PQconnectionNeedsPassword(pg) != 0)
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                              "the server wants a password and none was given");
    if (pg_descriptors_are_exhausted())
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no descriptor is left");
    char reason[160];
    pg_error_copy_reason(message, reason, sizeof reason);
    /* If there is no port, libpq has not yet chosen a host. */
    if (*PQport(pg) == 0)
        return syncguard_fail(
            err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s: %s",
            service ? "option service cannot be used" : "libpq refuses the options", reason);
    return syncguard_fail(err, UNAVAILABLE, NULL, "cannot connect to the server: %s", reason);
}
