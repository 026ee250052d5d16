/*
 * Options: one table for all commands, so that a name means the same everywhere
 * and --help lists all of them. Names follow flock(1) where it has them.
 */
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exitcode.h"
#include "options.h"
#include "report.h"
#include "text.h"
#include "times.h"

typedef enum option_kind {
    SWITCH,
    TEXT,
    DURATION,
    POSITIVE_DURATION,
    EXIT_CODE,
    LOCK_KEY,
    SLOTS,
    ON_LOST,
    REFUSED
} option_kind;

typedef struct option_row {
    unsigned bit;
    char letter;       /* 0: none */
    const char *name;  /* NULL: none */
    const char *value; /* what --help calls its value; NULL: a switch */
    option_kind kind;
    size_t field;     /* offset in cli_options */
    const char *text; /* NULL: another name of the option, not in --help; REFUSED: why */
} option_row;

#define FIELD(name) offsetof(cli_options, name)
static const option_row rows[] = {
    {CLI_BACKEND, 'b', "backend", "URL", TEXT, FIELD(backend),
     "the store; @FILE reads the URL from a file"},
    {CLI_KEYS, 'k', "key", "KEY", LOCK_KEY, 0,
     "a key, instead of KEY; repeat it to lock several, all or none"},
    {CLI_SLOTS, 0, "slots", "N", SLOTS, FIELD(slots),
     "let up to N hold the key at a time, each in a slot of its own"},
    {CLI_NONBLOCK, 'n', "nonblock", NULL, SWITCH, FIELD(nonblock),
     "do not wait: exit 1 if the lock is held (also --nb)"},
    {CLI_NONBLOCK, 0, "nb", NULL, SWITCH, FIELD(nonblock), NULL},
    {CLI_WAIT, 'w', "wait", "TIME", DURATION, FIELD(wait_ms),
     "wait at most this long, then exit 75 (also --timeout)"},
    {CLI_WAIT, 0, "timeout", "TIME", DURATION, FIELD(wait_ms), NULL},
    {CLI_CONFLICT_CODE, 'E', "conflict-exit-code", "N", EXIT_CODE, FIELD(conflict_code),
     "exit with N if another owner holds the lock"},
    {CLI_TTL, 0, "ttl", "TIME", POSITIVE_DURATION, FIELD(ttl_ms),
     "length of the lease (default 30s)"},
    {CLI_GRACE, 0, "grace", "TIME", DURATION, FIELD(grace_ms),
     "time between SIGTERM and SIGKILL when the lock is lost"},
    {CLI_ON_LOST, 0, "on-lost", "kill|warn", ON_LOST, FIELD(warn_if_lost),
     "what to do when the lock is lost (default kill)"},
    {CLI_MAX_HOLD, 0, "max-hold", "TIME", POSITIVE_DURATION, FIELD(max_hold_ms),
     "hold the lock for at most this long; it is then lost"},
    {CLI_MIN_HOLD, 0, "min-hold", "TIME", POSITIVE_DURATION, FIELD(min_hold_ms),
     "keep the lock at least this long, even if COMMAND ends sooner"},
    {CLI_OWNER, 0, "owner", "LABEL", TEXT, FIELD(owner),
     "label of the owner (default user@host:pid)"},
    {CLI_METRICS, 0, "metrics", "FILE", TEXT, FIELD(metrics),
     "write the results of the run for the node_exporter"},
    {CLI_EXPORT_URL, 0, "export-url", NULL, SWITCH, FIELD(export_url),
     "pass the URL to the program, password included"},
    {CLI_SHELL, 'c', "command", "STRING", TEXT, FIELD(shell),
     "run STRING with sh -c; may also follow the key"},
    {CLI_FLOCK, 'x', "exclusive", NULL, SWITCH, FIELD(no_effect),
     "accepted as in flock; every lock is exclusive"},
    {CLI_FLOCK, 'e', NULL, NULL, SWITCH, FIELD(no_effect), NULL},
    {CLI_FLOCK, 'o', "close", NULL, SWITCH, FIELD(no_effect),
     "accepted as in flock; the program never inherits the lock"},
    {CLI_FLOCK, 'F', "no-fork", NULL, SWITCH, FIELD(no_effect),
     "accepted as in flock, no effect: run stays to renew the lock"},
    {CLI_FLOCK, 's', "shared", NULL, REFUSED, 0, "there are no shared locks, only exclusive ones"},
    {CLI_FLOCK, 'u', "unlock", NULL, REFUSED, 0,
     "use 'syncguard release'; run releases at the end of the program"},
    {CLI_QUIET, 'q', "quiet", NULL, SWITCH, FIELD(quiet), "print the lock id only"},
    {CLI_QUIET_HOLDER, 'q', "quiet", NULL, SWITCH, FIELD(quiet),
     "do not report that another owner holds the lock"},
    {CLI_ID, 0, "id", "LOCKID", TEXT, FIELD(id), "look up by lock id instead of by key"},
    {CLI_KEY, 0, "key", "KEY", TEXT, FIELD(key), "release the lock of this key, whoever holds it"},
    {CLI_FORCE, 0, "force", NULL, SWITCH, FIELD(force),
     "required with --key: takes the lock away from its holder"},
    {CLI_SYSLOG, 0, "syslog", NULL, SWITCH, FIELD(syslog), "also write the audit line to syslog"},
    {CLI_RAW, 0, "raw", NULL, SWITCH, FIELD(raw),
     "also show the lock id, with which anyone can release the lock"},
    {CLI_WATCH, 0, "watch", NULL, SWITCH, FIELD(watch), "refresh the table every 2 seconds"},
    {CLI_DRY_RUN, 0, "dry-run", NULL, SWITCH, FIELD(dry_run),
     "list the records, but remove nothing"},
    {CLI_PRINT, 0, "print", NULL, SWITCH, FIELD(print), "print the statements and change nothing"},
    {CLI_PLOT, 0, "plot", "FILE", TEXT, FIELD(plot), "also write a plot of the figures, as SVG"},
    {CLI_JSON, 0, "json", NULL, SWITCH, FIELD(json), "print JSON, one object per line"},
    {CLI_VERBOSE, 'v', "verbose", NULL, SWITCH, FIELD(verbose),
     "report each step, and which store is used"},
    {CLI_HELP, 'h', "help", NULL, SWITCH, FIELD(help), "print this help"},
};
#define ROWS (sizeof rows / sizeof *rows)

static bool options_parse_number(const char *text, long least, long most, int *out)
{
    char *end = NULL;
    if (*text < '0' || *text > '9')
        return false;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || end - text > 3 || value < least || value > most)
        return false;
    *out = (int)value;
    return true;
}

static int options_refuse_value(const option_row *row, const char *wanted)
{
    return cli_usage_error("--%s: %s", row->name, wanted);
}

static int options_set_duration(const option_row *row, const char *value, int64_t *out)
{
    if (!cli_parse_duration(value, out))
        return options_refuse_value(row, "not a duration such as 500ms, 30s, 5m, 2h");
    if (row->kind == POSITIVE_DURATION && *out == 0)
        return options_refuse_value(row, "must be at least 1ms");
    return CLI_OK;
}

static int options_set_on_lost(const option_row *row, const char *value, bool *warn)
{
    *warn = strcmp(value, "warn") == 0;
    if (!*warn && strcmp(value, "kill") != 0)
        return options_refuse_value(row, "must be kill or warn");
    return CLI_OK;
}

static int options_add_key(const option_row *row, const char *value, cli_options *out)
{
    if (out->key_count == SYNCGUARD_LOCK_SET_MAX)
        return options_refuse_value(row, "at most 64 keys");
    out->keys[out->key_count++] = value;
    return CLI_OK;
}

static int options_set_value(const option_row *row, char *value, cli_options *out)
{
    void *field = (char *)out + row->field;
    switch (row->kind) {
    case SWITCH:
        *(bool *)field = true;
        return CLI_OK;
    case TEXT:
        *(char **)field = value;
        return CLI_OK;
    case DURATION:
    case POSITIVE_DURATION:
        return options_set_duration(row, value, field);
    case EXIT_CODE:
        return options_parse_number(value, 0, 255, field)
                   ? CLI_OK
                   : options_refuse_value(row, "must be a number from 0 to 255");
    case SLOTS:
        return options_parse_number(value, 1, SYNCGUARD_SLOTS_MAX, field)
                   ? CLI_OK
                   : options_refuse_value(row, "must be a number from 1 to 256");
    case LOCK_KEY:
        return options_add_key(row, value, out);
    case ON_LOST:
        return options_set_on_lost(row, value, field);
    case REFUSED:
        return cli_usage_error("-%c, --%s: %s", row->letter, row->name, row->text);
    }
    return CLI_OK;
}

/* Builds the tables for getopt_long with the options of one command. */
static void options_build_getopt_tables(const cli_command *command, char *letters,
                                        struct option *names)
{
    if (command->options_first)
        *letters++ = '+';
    *letters++ = ':'; /* makes getopt_long report a missing value as such */
    for (size_t i = 0; i < ROWS; i++) {
        if ((command->takes & rows[i].bit) == 0)
            continue;
        if (rows[i].letter != 0) {
            *letters++ = rows[i].letter;
            if (rows[i].value != NULL)
                *letters++ = ':';
        }
        if (rows[i].name == NULL)
            continue;
        names->name = rows[i].name;
        names->has_arg = rows[i].value != NULL ? required_argument : no_argument;
        names->flag = NULL;
        names->val = 256 + (int)i;
        names++;
    }
    *letters = '\0';
    memset(names, 0, sizeof *names);
}

static const option_row *options_find_row(int found)
{
    if (found >= 256)
        return &rows[found - 256];
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].letter == found)
            return &rows[i];
    }
    return NULL;
}

/* The message omits the text after '=', which may be a URL with a password. */
static int options_refuse_option(int found, char **argv)
{
    char name[64];
    const char *given = argv[optind - 1];
    if (optopt != 0 && optopt < 256) {
        snprintf(name, sizeof name, "-%c", optopt);
    } else if (optopt >= 256) {
        snprintf(name, sizeof name, "--%s", rows[optopt - 256].name);
    } else {
        cli_escape(given, name, sizeof name);
        name[strcspn(name, "=")] = '\0';
    }
    if (found == ':')
        return cli_usage_error("option %s needs a value", name);
    if (optopt >= 256)
        return cli_usage_error("option %s takes no value", name);
    return cli_usage_error("unknown option %s", name);
}

/*
 * One lock id in 64 begins with a minus sign, and scripts do not expect that. No option looks like
 * a lock id, so the lock id is moved behind the options. Returns the new end of the options.
 */
static int options_move_lock_id(const cli_command *command, int argc, char **argv)
{
    if (strncmp(command->operands, "LOCKID", 6) != 0)
        return argc;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char *given = argv[i];
        if (given[0] != '-' || !syncguard_lock_id_valid(given))
            continue;
        memmove(argv + i, argv + i + 1, (size_t)(argc - i - 1) * sizeof *argv);
        argv[argc - 1] = given;
        return argc - 1;
    }
    return argc;
}

/* Checks combinations of options, and the number of operands. */
static int options_check(const cli_command *command, const cli_options *out)
{
    if (out->nonblock && out->wait_ms != SYNCGUARD_WAIT_FOREVER)
        return cli_usage_error("-n and -w cannot be used together");
    if (out->grace_ms > out->ttl_ms / 3)
        return cli_usage_error("--grace may be at most a third of --ttl");
    if (out->slots > 0 && out->key_count > 1)
        return cli_usage_error("--slots takes one key");
    if (out->count + (out->key_count > 0 ? 1 : 0) < command->min_operands)
        return cli_usage_error("%s", command->missing);
    if (command->max_operands >= 0 && out->count > command->max_operands)
        return cli_usage_error("too many arguments");
    return CLI_OK;
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out)
{
    char letters[2 * ROWS + 3];
    struct option names[ROWS + 1];
    memset(out, 0, sizeof *out);
    out->command = command;
    out->wait_ms = SYNCGUARD_WAIT_FOREVER;
    out->conflict_code = -1;
    out->ttl_ms = SYNCGUARD_DEFAULT_TTL_MS;
    out->grace_ms = -1;
    options_build_getopt_tables(command, letters, names);
    int end = options_move_lock_id(command, argc, argv);
    opterr = 0;
    int found = 0;
    while ((found = getopt_long(end, argv, letters, names, NULL)) != -1) {
        if (found == '?' || found == ':')
            return options_refuse_option(found, argv);
        int code = options_set_value(options_find_row(found), optarg, out);
        if (code != CLI_OK)
            return code;
        if (out->help)
            return CLI_OK;
    }
    out->count = argc - optind;
    out->operands = argv + optind;
    out->program = out->operands;
    if (out->key_count == 0 && out->count > 0) {
        out->keys[out->key_count++] = out->operands[0];
        out->program++;
    }
    return options_check(command, out);
}

/* Accepts the output of acquire, with or without -q: the id is in its first line. */
const char *cli_lock_id(const cli_options *options, char buffer[SYNCGUARD_LOCK_ID_SIZE])
{
    static const char prefix[] = "lockId: ";
    char line[128];
    if (strcmp(options->operands[0], "-") != 0)
        return options->operands[0];
    if (fgets(line, sizeof line, stdin) == NULL) {
        cli_usage_error("there is no lock id on standard input");
        return NULL;
    }
    const char *text =
        line + (strncmp(line, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0);
    line[strcspn(line, "\r\n")] = '\0';
    if (!syncguard_lock_id_valid(text)) {
        cli_usage_error("the first line of standard input is not a lock id");
        return NULL;
    }
    memcpy(buffer, text, SYNCGUARD_LOCK_ID_SIZE);
    return buffer;
}

void cli_help(const cli_command *command)
{
    printf("usage: syncguard %s [options]%s%s\n%s\n\n", command->name,
           *command->operands != '\0' ? " " : "", command->operands, command->summary);
    bool times = false;
    for (size_t i = 0; i < ROWS; i++) {
        char name[48], left[64];
        if ((command->takes & rows[i].bit) == 0 || rows[i].text == NULL || rows[i].kind == REFUSED)
            continue;
        snprintf(name, sizeof name, "--%s%s%s", rows[i].name, rows[i].value != NULL ? " " : "",
                 rows[i].value != NULL ? rows[i].value : "");
        if (rows[i].letter != 0)
            snprintf(left, sizeof left, "-%c, %s", rows[i].letter, name);
        else
            snprintf(left, sizeof left, "    %s", name);
        printf("  %-29s %s\n", left, rows[i].text);
        times = times || (rows[i].value != NULL && strcmp(rows[i].value, "TIME") == 0);
    }
    printf("\n%sSee man syncguard-%s.\n",
           times ? "A TIME is 500ms, 30s, 5m, 2h or a plain number of seconds.\n" : "",
           command->name);
}
