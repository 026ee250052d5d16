/* Which store: URL, what of it may be shown, and the label of our locks. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli.h"

/* The first line of a file, so that a URL with a password need not stand in the arguments. */
static int read_url(const cli_options *options, const char *path, char *buffer)
{
    size_t used = 0;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        char shown[256];
        int reason = errno;
        cli_plain(path, shown, sizeof shown);
        return cli_usage_error(options->command->name, "cannot read the URL from '%s': %s", shown,
                               strerror(reason));
    }
    while (used < CLI_URL_SIZE - 1 &&
           (got = read(fd, buffer + used, CLI_URL_SIZE - 1 - used)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    buffer[used] = '\0';
    size_t length = strcspn(buffer, "\r\n");
    if (got < 0 || length == 0 || length == CLI_URL_SIZE - 1)
        return cli_usage_error(options->command->name,
                               "the file after -b @ does not begin with a line that is a URL");
    while (length > 0 && (buffer[length - 1] == ' ' || buffer[length - 1] == '\t'))
        length--;
    buffer[length] = '\0';
    return CLI_OK;
}

int cli_url(const cli_options *options, char *buffer)
{
    syncguard_error err;
    const char *given = options->backend;
    if (given == NULL) {
        if (syncguard_default_url(buffer, CLI_URL_SIZE, &err) != SYNCGUARD_OK)
            return cli_failure(options, &err);
        return CLI_OK;
    }
    if (given[0] == '@')
        return read_url(options, given + 1, buffer);
    if (*given == '\0' || strlen(given) >= CLI_URL_SIZE)
        return cli_usage_error(options->command->name, "the URL is empty or too long");
    snprintf(buffer, CLI_URL_SIZE, "%s", given);
    return CLI_OK;
}

/*
 * A password may hold characters that should have been escaped, so for stores
 * with credentials everything up to the last '@' goes, wherever it stands; and
 * all options go.
 */
void cli_url_shown(const char *url, char *out, size_t size)
{
    char text[CLI_URL_SIZE], plain[CLI_URL_SIZE];
    size_t scheme = strcspn(url, ":");
    const char *rest = url + scheme;
    bool local = (scheme == 6 && strncmp(url, "sqlite", 6) == 0) ||
                 (scheme == 6 && strncmp(url, "memory", 6) == 0);
    if (*rest == ':')
        rest++;
    if (!local && strrchr(rest, '@') != NULL)
        rest = strrchr(rest, '@') + 1;
    else if (!local && strncmp(rest, "//", 2) == 0)
        rest += 2;
    snprintf(text, sizeof text, "%.*s:%s%.*s", (int)scheme, url, local ? "" : "//",
             (int)strcspn(rest, "?#"), rest);
    cli_plain(text, plain, sizeof plain);
    snprintf(out, size, "%s", plain);
}

static void append_plain(char *out, size_t size, const char *text)
{
    size_t used = strlen(out);
    for (; *text != '\0' && used + 1 < size; text++)
        out[used++] = *text > ' ' && *text < 0x7F ? *text : '?';
    out[used] = '\0';
}

const char *cli_owner(const cli_options *options, pid_t pid, char buffer[SYNCGUARD_OWNER_SIZE])
{
    char host[65] = "", number[24];
    const char *user = getenv("USER");
    if (options->owner != NULL)
        return options->owner;
    /* The environment is enough for a label, and costs no lookup in the user database. */
    if (user == NULL || *user == '\0')
        user = getenv("LOGNAME");
    snprintf(number, sizeof number, "%lu", (unsigned long)getuid());
    if (user == NULL || *user == '\0')
        user = number;
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    buffer[0] = '\0';
    append_plain(buffer, 49, user);
    append_plain(buffer, SYNCGUARD_OWNER_SIZE, "@");
    append_plain(buffer, SYNCGUARD_OWNER_SIZE, host);
    snprintf(number, sizeof number, ":%ld", (long)pid);
    append_plain(buffer, SYNCGUARD_OWNER_SIZE, number);
    return buffer;
}

/* A file that cannot be opened is not a server that may come back. */
static bool is_local(const char *url)
{
    return strncasecmp(url, "sqlite:", 7) == 0;
}

int cli_open(const cli_options *options, const char *owner, cli_waiting *waiting,
             syncguard_backend **out)
{
    char url[CLI_URL_SIZE];
    syncguard_error err;
    syncguard_options store = SYNCGUARD_OPTIONS_INIT;
    int code = cli_url(options, url);
    if (code != CLI_OK)
        return code;
    if (options->verbose) {
        char shown[512];
        cli_url_shown(url, shown, sizeof shown);
        cli_tell("store %s", shown);
    }
    store.owner = owner;
    store.log = cli_log;
    store.on_release_error = cli_release_error;
    /* NULL and not the same URL: only then are the default's missing folders made. */
    const char *given = options->backend != NULL ? url : NULL;
    syncguard_status status;
    do {
        status = syncguard_open(given, &store, out, &err);
    } while (status != SYNCGUARD_OK && waiting != NULL && !is_local(url) &&
             cli_wait_for_store(waiting, &err));
    if (status != SYNCGUARD_OK && waiting != NULL && cli_signals_ended() != 0)
        return CLI_SIGNAL_BASE + cli_signals_ended();
    return status == SYNCGUARD_OK ? CLI_OK : cli_failure(options, &err);
}
