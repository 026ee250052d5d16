/*
 * syncguard list: the live locks whose keys match a pattern, as a table or as JSON. --watch
 * repeatedly prints the table over the previous one.
 */
#include <fnmatch.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"
#include "table.h"
#include "text.h"
#include "times.h"

enum { WATCH_MS = 2000, WATCH_ROWS = 1000 };

typedef struct listing {
    const cli_options *options;
    const char *pattern; /* NULL: all */
    cli_table table;
    size_t total;
} listing;

static bool list_on_lock(void *context, const syncguard_lock_info_raw *lock)
{
    listing *l = context;
    cli_json json;
    if (l->pattern != NULL && fnmatch(l->pattern, lock->key, 0) != 0)
        return true;
    l->total++;
    if (l->options->json) {
        cli_json_begin(&json);
        cli_json_lock(&json, lock, l->options->raw);
        cli_json_end(&json);
    } else if (!l->options->watch || l->total <= WATCH_ROWS) { /* more than any screen has */
        cli_table_add(&l->table, lock);
    }
    return ferror(stdout) == 0;
}

static int list_fail_memory(void)
{
    syncguard_error err;
    memset(&err, 0, sizeof err);
    err.code = SYNCGUARD_E_OUT_OF_MEMORY;
    return cli_failure(&err);
}

/* Prints all locks to out; after a failure, those that were read before it. */
static int list_print_locks(listing *l, syncguard_backend *backend, FILE *out, syncguard_error *err)
{
    l->total = 0;
    if (!cli_table_begin(&l->table, out, l->options->raw))
        return list_fail_memory();
    syncguard_status status = syncguard_list_raw(backend, NULL, list_on_lock, l, err);
    cli_table_end(&l->table);
    return cli_exit_code(status);
}

static int list_print_once(listing *l, syncguard_backend *backend)
{
    syncguard_error err;
    memset(&err, 0, sizeof err);
    int code = list_print_locks(l, backend, stdout, &err);
    if (code != CLI_OK)
        return err.code != SYNCGUARD_OK ? cli_failure(&err) : code;
    if (l->total > 0)
        return CLI_OK;
    if (l->pattern != NULL)
        cli_notice("no lock is held whose key matches the pattern");
    else
        cli_notice("no lock is held");
    return CLI_OK;
}

/* ---- --watch ---- */

/* One line of the screen, cut at its width: a line that wraps would push the heading off. Cleared
 * first, because after a full line some terminals would clear its last character. */
static void screen_put_line(const char *text, size_t length, int columns)
{
    fputs("\033[K", stdout);
    fwrite(text, 1, cli_fitting(text, length, columns), stdout);
    fputs("\n", stdout);
}

/* The lines of text, as many as the screen has room for. */
static void screen_draw(const char *heading, const char *text)
{
    struct winsize window;
    int rows = 24, columns = 80;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 0 && window.ws_col > 0) {
        rows = window.ws_row;
        columns = window.ws_col;
    }
    fputs("\033[H", stdout);
    screen_put_line(heading, strlen(heading), columns);
    screen_put_line("", 0, columns);
    for (int row = 2; *text != '\0'; row++) {
        size_t length = strcspn(text, "\n");
        if (row >= rows - 2 && text[length] != '\0' && text[length + 1] != '\0') {
            screen_put_line("...", 3, columns);
            break;
        }
        screen_put_line(text, length, columns);
        text += length + (text[length] != '\0');
    }
    fputs("\033[J", stdout);
    fflush(stdout);
}

static void list_format_heading(const listing *l, const syncguard_error *err, char *out,
                                size_t size)
{
    char when[40], text[sizeof err->message + 64];
    cli_format_time(cli_wall_ms(), when, sizeof when);
    if (err->code != SYNCGUARD_OK)
        snprintf(text, sizeof text, "%s (%s)", err->message, syncguard_status_name(err->code));
    else
        snprintf(text, sizeof text, "%zu %s held", l->total, l->total == 1 ? "lock" : "locks");
    const char *store = cli_store_name();
    size_t used =
        (size_t)snprintf(out, size, "%s   %s%s", when, store, *store != '\0' ? "   " : "");
    cli_escape_controls(text, out + used, size - used);
}

/* A failure is shown in place of the locks, and the store is asked again. */
static int list_watch(listing *l, syncguard_backend *backend)
{
    fputs("\033[2J", stdout);
    while (ferror(stdout) == 0) {
        syncguard_error err;
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        if (out == NULL)
            return list_fail_memory();
        memset(&err, 0, sizeof err);
        int code = list_print_locks(l, backend, out, &err);
        fclose(out);
        if (text == NULL || code == CLI_NO_MEMORY) {
            free(text);
            return text == NULL ? list_fail_memory() : code;
        }
        char heading[2048];
        list_format_heading(l, &err, heading, sizeof heading);
        screen_draw(heading, text);
        free(text);
        poll(NULL, 0, WATCH_MS);
    }
    return CLI_INTERNAL;
}

int cmd_list(cli_options *options)
{
    listing l;
    memset(&l, 0, sizeof l);
    l.options = options;
    l.pattern = options->count > 0 ? options->operands[0] : NULL;
    if (options->watch && options->json)
        return cli_usage_error("--watch and --json cannot be used together");
    if (options->watch && isatty(STDOUT_FILENO) == 0)
        return cli_usage_error("--watch needs a terminal");
    cli_use_utf8(); /* also for the pattern: its ? stands for a character, not for a byte */
    int code = cli_refuse_memory(options);
    syncguard_backend *backend = NULL;
    if (code == CLI_OK)
        code = cli_open_existing(options, &backend);
    if (code != CLI_OK || backend == NULL)
        return code;
    code = options->watch ? list_watch(&l, backend) : list_print_once(&l, backend);
    syncguard_close(backend);
    return code;
}
