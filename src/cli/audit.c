/*
 * The audit line: name=value pairs, text in quotes with control characters, quotes and backslashes
 * escaped, so that neither a key nor an owner label can forge another field.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "report.h"
#include "store.h"
#include "text.h"
#include "times.h"

/* Puts text in quotes; a quote inside becomes \x22. */
static void audit_quote(const char *text, char *out, size_t size)
{
    char shown[4 * SYNCGUARD_KEY_SIZE];
    size_t used = 0;
    cli_escape(text, shown, sizeof shown);
    out[used++] = '"';
    for (const char *at = shown; *at != '\0' && used + 6 < size; at++) {
        if (*at == '"')
            used += (size_t)snprintf(out + used, size - used, "\\x22");
        else
            out[used++] = *at;
    }
    out[used++] = '"';
    out[used] = '\0';
}

/* The user name comes from the user database, because the user can set the environment. Only the
 * environment contains the name of the user who called sudo. */
static void audit_describe_operator(char *out, size_t size)
{
    char user[64], host[65] = "", label[160];
    const char *before = getenv("SUDO_USER");
    cli_user_name(user, sizeof user);
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    if (getuid() == 0 && before != NULL && *before != '\0')
        snprintf(label, sizeof label, "%s@%s (sudo: %.32s)", user, host, before);
    else
        snprintf(label, sizeof label, "%s@%s", user, host);
    audit_quote(label, out, size);
}

bool cli_audit(const char *action, const char *url, const syncguard_lock_info_raw *lock,
               const char *result, bool to_syslog)
{
    char when[32];
    char shown[512], store[600];
    cli_url_without_secrets(url, shown, sizeof shown);
    audit_quote(shown, store, sizeof store);
    cli_format_time_utc(cli_wall_ms(), when, sizeof when);
    char by[700];
    audit_describe_operator(by, sizeof by);
    char key[4 * SYNCGUARD_KEY_SIZE];
    audit_quote(lock->key, key, sizeof key);
    char owner[4 * SYNCGUARD_OWNER_SIZE];
    audit_quote(lock->owner, owner, sizeof owner);
    char line[CLI_RECORD_SIZE];
    snprintf(line, sizeof line,
             "audit: time=%s operator=%s action=%s store=%s key=%s owner=%s fence=%s result=%s",
             when, by, action, store, key, owner, lock->info.fence, result);
    bool written = cli_record(line);
    if (to_syslog) {
        openlog("syncguard", LOG_PID, LOG_AUTH);
        syslog(LOG_NOTICE, "%s", line);
        closelog();
    }
    return written;
}
