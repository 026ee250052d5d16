/* The store that the options name: the places of its URL, the URL, the part of it that may be
 * printed, and the owner label. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exitcode.h"
#include "report.h"
#include "signals.h"
#include "store.h"
#include "text.h"

/* ---- places of the URL ---- */

static bool path_is_absolute(const char *path)
{
    return path != NULL && path[0] == '/';
}

static void url_source_check_file(cli_place *p)
{
    struct stat about;
    if (stat(p->name, &about) != 0 && (errno == ENOENT || errno == ENOTDIR))
        p->unset = "does not exist";
}

size_t cli_find_places(const cli_options *options, cli_place places[CLI_PLACES])
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    memset(places, 0, CLI_PLACES * sizeof *places);
    snprintf(places[0].name, CLI_PLACE_SIZE, "-b");
    places[0].unset = options->backend == NULL ? "not given" : NULL;
    snprintf(places[1].name, CLI_PLACE_SIZE, "SYNCGUARD_URL");
    places[1].unset = getenv("SYNCGUARD_URL") == NULL ? "not set" : NULL;
    if (path_is_absolute(config) || path_is_absolute(home))
        snprintf(places[2].name, CLI_PLACE_SIZE, "%s%s/syncguard/url",
                 path_is_absolute(config) ? config : home,
                 path_is_absolute(config) ? "" : "/.config");
    else
        snprintf(places[2].name, CLI_PLACE_SIZE, "~/.config/syncguard/url");
    url_source_check_file(&places[2]);
    snprintf(places[3].name, CLI_PLACE_SIZE, "/etc/syncguard/url");
    url_source_check_file(&places[3]);
    snprintf(places[4].name, CLI_PLACE_SIZE, "default");
    size_t used = 0;
    while (places[used].unset != NULL)
        used++;
    return used;
}

/* ---- the URL ---- */

/* Reads the URL from the file that place names with @. call limits the wait for a pipe. */
static int store_read_url_file(const char *place, const char *path, const syncguard_call *call,
                               char *buffer)
{
    syncguard_error err;
    char shown[256];
    syncguard_status status = syncguard_url_from_file(path, call, buffer, CLI_URL_SIZE, &err);
    if (status == SYNCGUARD_OK)
        return CLI_OK;
    if (cli_signals_ended() != 0)
        return CLI_SIGNAL_BASE + cli_signals_ended();
    cli_escape(path, shown, sizeof shown);
    if (status == SYNCGUARD_ABSENT && *place == '-')
        return cli_usage_error("%s names the file '%s', which does not exist", place, shown);
    if (status == SYNCGUARD_ABSENT) {
        cli_message("%s names the file '%s', which does not exist", place, shown);
        return CLI_USAGE;
    }
    cli_message("%s: %s", place, err.message);
    return cli_exit_code(status);
}

static int store_find_url(const cli_options *options, const syncguard_call *call, char *buffer)
{
    syncguard_error err;
    const char *given = options->backend;
    const char *variable = secure_getenv("SYNCGUARD_URL");
    if (given == NULL && variable != NULL && variable[0] == '@')
        return store_read_url_file("SYNCGUARD_URL", variable + 1, call, buffer);
    if (given == NULL) {
        syncguard_status status = syncguard_default_url(buffer, CLI_URL_SIZE, &err);
        if (status == SYNCGUARD_E_INVALID_ARGUMENT) {
            cli_message("%s", err.message); /* it names the variable or the file */
            return CLI_USAGE;
        }
        return status == SYNCGUARD_OK ? CLI_OK : cli_failure(&err);
    }
    if (given[0] == '@')
        return store_read_url_file("-b", given + 1, call, buffer);
    if (*given == '\0' || strlen(given) >= CLI_URL_SIZE)
        return cli_usage_error("the URL is empty or too long");
    snprintf(buffer, CLI_URL_SIZE, "%s", given);
    return CLI_OK;
}

/* Notes for messages where the URL comes from: the place, and the file if the place names one. */
static void store_note_url_source(const cli_options *options)
{
    cli_place places[CLI_PLACES];
    size_t used = cli_find_places(options, places);
    const char *value = used == 0 ? options->backend : used == 1 ? getenv("SYNCGUARD_URL") : NULL;
    char text[2 * CLI_PLACE_SIZE];
    bool file = value != NULL && value[0] == '@';
    snprintf(text, sizeof text, "%s%s%.500s", places[used].name, file ? " " : "",
             file ? value : "");
    cli_set_source(text);
}

int cli_store_url_within(const cli_options *options, const syncguard_call *call, char *buffer)
{
    static char found[CLI_URL_SIZE];
    if (found[0] == '\0')
        store_note_url_source(options);
    int code = found[0] != '\0' ? CLI_OK : store_find_url(options, call, found);
    if (code == CLI_OK)
        memcpy(buffer, found, sizeof found);
    else
        found[0] = '\0';
    return code;
}

int cli_store_url(const cli_options *options, char *buffer)
{
    return cli_store_url_within(options, NULL, buffer);
}

static bool store_url_is_local(const char *url)
{
    return strncasecmp(url, "sqlite:", 7) == 0 || strncasecmp(url, "memory:", 7) == 0;
}

/*
 * A password may contain characters that should have been escaped, so for stores
 * with credentials everything up to the last '@' is left out, and so are all
 * options. If an option may contain that '@', nothing but the scheme is left.
 */
void cli_url_without_secrets(const char *url, char *out, size_t size)
{
    char text[CLI_URL_SIZE];
    size_t scheme = strcspn(url, ":");
    const char *rest = url + scheme;
    const char *at = strrchr(url, '@');
    bool local = store_url_is_local(url);
    if (*rest == ':')
        rest++;
    if (!local && at != NULL && rest + strcspn(rest, "?#") < at)
        rest = "(hidden)";
    else if (!local && at != NULL)
        rest = at + 1;
    else if (!local && strncmp(rest, "//", 2) == 0)
        rest += 2;
    snprintf(text, sizeof text, "%.*s:%s%.*s", (int)scheme, url, local ? "" : "//",
             (int)strcspn(rest, "?#"), rest);
    cli_escape(text, out, size);
}

bool cli_url_has_password(const char *url)
{
    const char *at = strrchr(url, '@');
    const char *user = strchr(url, ':');
    if (store_url_is_local(url) || user == NULL)
        return false;
    user += 1 + strspn(user + 1, "/");
    if (at != NULL && at > user && memchr(user, ':', (size_t)(at - user)) != NULL)
        return true;
    return strcasestr(user, "password") != NULL; /* an option */
}

int cli_refuse_memory(const cli_options *options)
{
    char url[CLI_URL_SIZE];
    int code = cli_store_url(options, url);
    if (code == CLI_OK && strncasecmp(url, "memory:", 7) == 0)
        return cli_usage_error("memory: ends with this command, so it holds no lock of another; "
                               "use it with run only");
    return code;
}

static void owner_append_printable(char *out, size_t size, const char *text)
{
    size_t used = strlen(out);
    for (; *text != '\0' && used + 1 < size; text++)
        out[used++] = *text > ' ' && *text < 0x7F ? *text : '?';
    out[used] = '\0';
}

void cli_user_name(char *out, size_t size)
{
    const struct passwd *entry = getpwuid(getuid());
    out[0] = '\0';
    if (entry != NULL && entry->pw_name != NULL)
        owner_append_printable(out, size, entry->pw_name);
    if (out[0] == '\0')
        snprintf(out, size, "%lu", (unsigned long)getuid());
}

const char *cli_owner(const cli_options *options, pid_t pid, char buffer[SYNCGUARD_OWNER_SIZE])
{
    char name[64];
    const char *user = getenv("USER");
    if (options->owner != NULL)
        return options->owner;
    /* The environment is good enough for a label, and saves the lookup in the user database. Only
     * processes without these variables (cron jobs, containers) need the lookup. */
    if (user == NULL || *user == '\0')
        user = getenv("LOGNAME");
    if (user == NULL || *user == '\0') {
        cli_user_name(name, sizeof name);
        user = name;
    }
    char host[65] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    buffer[0] = '\0';
    owner_append_printable(buffer, 49, user);
    owner_append_printable(buffer, SYNCGUARD_OWNER_SIZE, "@");
    owner_append_printable(buffer, SYNCGUARD_OWNER_SIZE, host);
    char number[24];
    snprintf(number, sizeof number, ":%ld", (long)pid);
    owner_append_printable(buffer, SYNCGUARD_OWNER_SIZE, number);
    return buffer;
}

void cli_announce_store(const char *url, char *shown, size_t size)
{
    cli_url_without_secrets(url, shown, size);
    cli_verbose("store %s", shown);
    cli_set_store(store_url_is_local(url) ? "" : shown); /* messages about files name the file */
}

static int store_url_hex_value(char digit)
{
    const char *digits = "0123456789abcdef";
    const char *at = digit != '\0' ? strchr(digits, digit | 0x20) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* The path of an sqlite: URL. False for other URLs. */
static bool store_url_file_path(const char *url, char path[CLI_URL_SIZE])
{
    size_t used = 0;
    const char *at = url + strlen("sqlite:");
    if (strncasecmp(url, "sqlite:", 7) != 0)
        return false;
    if (strncmp(at, "//", 2) == 0)
        at += 2 + strcspn(at + 2, "/?#");
    for (; *at != '\0' && *at != '?' && *at != '#'; at++) {
        path[used] = *at;
        if (*at == '%' && store_url_hex_value(at[1]) >= 0 && store_url_hex_value(at[2]) >= 0) {
            path[used] = (char)(store_url_hex_value(at[1]) * 16 + store_url_hex_value(at[2]));
            at += 2;
        }
        used++;
    }
    path[used] = '\0';
    return used > 0;
}

/*
 * Opening the handle of a server sends nothing. For a file, the options are checked with a path
 * that cannot exist, so that nothing is created or opened.
 */
bool cli_url_valid(const char *url, syncguard_error *err)
{
    char copy[CLI_URL_SIZE + 32], path[CLI_URL_SIZE];
    syncguard_backend *backend = NULL;
    syncguard_options store = SYNCGUARD_OPTIONS_INIT;
    const char *options = url + strcspn(url, "?#");
    if (store_url_file_path(url, path))
        snprintf(copy, sizeof copy, "sqlite:/proc/none/none/none%s", options);
    else
        snprintf(copy, sizeof copy, "%s", url);
    store.log = cli_log;
    syncguard_status status = syncguard_open(copy, &store, &backend, err);
    explicit_bzero(copy, sizeof copy);
    syncguard_close(backend);
    return status != SYNCGUARD_E_INVALID_ARGUMENT;
}

/* Root does not open a user's file, because that user could make root write elsewhere. */
static int store_report_open_error(const char *url, const syncguard_error *err)
{
    char path[CLI_URL_SIZE], name[64];
    struct stat about;
    /* Only a message that begins with a path is about the file. */
    if (err->code != SYNCGUARD_E_INVALID_ARGUMENT || err->message[0] != '/' || geteuid() != 0 ||
        !store_url_file_path(url, path) || stat(path, &about) != 0 || about.st_uid == 0)
        return cli_failure(err);
    const struct passwd *entry = getpwuid(about.st_uid);
    snprintf(name, sizeof name, "'#%lu'", (unsigned long)about.st_uid);
    cli_message("%s; use: sudo -u %s syncguard ...", err->message,
                entry != NULL && entry->pw_name != NULL ? entry->pw_name : name);
    return CLI_USAGE;
}

int cli_open_failure(const cli_options *options, const char *url, const syncguard_error *err)
{
    syncguard_error ignored;
    if (err->code != SYNCGUARD_E_INVALID_ARGUMENT ||
        cli_url_valid(url, &ignored)) /* then the failure is about the owner label or the file */
        return store_report_open_error(url, err);
    /* A message that begins with a path is about the module, for which --help is of no use. */
    if (options->backend != NULL && options->backend[0] != '@' && err->message[0] != '/')
        return cli_usage_error("the URL given with -b: %s", err->message);
    cli_message("%s (in the URL from %s; 'syncguard config' shows where the URL comes from)",
                err->message, cli_source());
    return CLI_USAGE;
}

int cli_open(const cli_options *options, const char *owner, cli_open_again *again, void *context,
             syncguard_backend **out)
{
    char url[CLI_URL_SIZE];
    syncguard_options store = SYNCGUARD_OPTIONS_INIT;
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    char shown[512];
    cli_announce_store(url, shown, sizeof shown);
    store.owner = owner;
    store.log = cli_log;
    store.on_release_error = cli_release_error;
    /* syncguard_open creates the missing folders of the default file only if the URL is NULL. */
    bool named = options->backend != NULL || getenv("SYNCGUARD_URL") != NULL;
    const char *given = named ? url : NULL;
    syncguard_status status = SYNCGUARD_OK;
    syncguard_error err;
    do {
        status = syncguard_open(given, &store, out, &err);
        /* A server may come back; a file that cannot be opened is reported at once. */
    } while (status != SYNCGUARD_OK && again != NULL && !store_url_is_local(url) &&
             again(context, &err));
    if (status != SYNCGUARD_OK && cli_signals_ended() != 0)
        return CLI_SIGNAL_BASE + cli_signals_ended();
    return status == SYNCGUARD_OK ? CLI_OK : cli_open_failure(options, url, &err);
}

bool cli_store_file(const cli_options *options, char *path)
{
    char url[CLI_URL_SIZE];
    return cli_store_url(options, url) == CLI_OK && store_url_file_path(url, path);
}

int cli_open_existing(const cli_options *options, syncguard_backend **out)
{
    char url[CLI_URL_SIZE], path[CLI_URL_SIZE];
    struct stat about;
    syncguard_error err;
    *out = NULL;
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    if (!store_url_file_path(url, path) || stat(path, &about) == 0 || errno != ENOENT ||
        !cli_url_valid(url, &err))
        return cli_open(options, NULL, NULL, NULL, out);
    char shown[512];
    cli_url_without_secrets(url, shown, sizeof shown);
    cli_message("%s does not exist yet, so no lock is held there", shown);
    return CLI_OK;
}
