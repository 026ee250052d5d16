/*
 * Options: one table for all commands, so that a name means the same everywhere
 * and --help cannot forget one. Names follow flock(1) where it has them.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct option_row {
    unsigned bit;
    char letter; /* 0: none */
    const char *name;
    const char *value; /* name of its value; NULL: a switch */
    const char *text;
} option_row;

static const option_row rows[] = {
    {CLI_BACKEND, 'b', "backend", "URL", "the store; @FILE reads the URL from a file"},
    {CLI_NONBLOCK, 'n', "nonblock", NULL, "do not wait: exit 1 if the lock is held"},
    {CLI_WAIT, 'w', "wait", "TIME", "wait at most this long, then exit 75 (default: for ever)"},
    {CLI_CONFLICT_CODE, 'E', "conflict-exit-code", "N", "exit with N if somebody holds the lock"},
    {CLI_TTL, 0, "ttl", "TIME", "length of the lease (default 30s)"},
    {CLI_GRACE, 0, "grace", "TIME", "time between SIGTERM and SIGKILL when the lock is lost"},
    {CLI_ON_LOST, 0, "on-lost", "kill|warn", "what to do then (default kill)"},
    {CLI_MAX_HOLD, 0, "max-hold", "TIME", "stop renewing after this long"},
    {CLI_OWNER, 0, "owner", "LABEL", "who holds it (default user@host:pid)"},
    {CLI_ID, 0, "id", "LOCKID", "ask by lock id instead of by key"},
    {CLI_RAW, 0, "raw", NULL, "also show key, lock id and owner"},
    {CLI_PRINT, 0, "print", NULL, "only print the statements, change nothing"},
    {CLI_PLOT, 0, "plot", "FILE", "also draw the figures, as SVG"},
    {CLI_JSON, 0, "json", NULL, "print JSON, one object per line"},
    {CLI_VERBOSE, 'v', "verbose", NULL, "say what is done, and on which store"},
    {CLI_HELP, 'h', "help", NULL, "print this help"},
};
#define ROWS (sizeof rows / sizeof *rows)

static int64_t unit_ms(const char *unit)
{
    if (*unit == '\0' || strcmp(unit, "s") == 0)
        return 1000;
    if (strcmp(unit, "ms") == 0)
        return 1;
    if (strcmp(unit, "m") == 0)
        return INT64_C(60) * 1000;
    if (strcmp(unit, "h") == 0)
        return INT64_C(3600) * 1000;
    if (strcmp(unit, "d") == 0)
        return INT64_C(24) * 3600 * 1000;
    return 0;
}

bool cli_duration(const char *text, int64_t *ms)
{
    int64_t whole = 0, part = 0, scale = 1;
    bool digits = false;

    for (; *text >= '0' && *text <= '9'; text++, digits = true) {
        if (whole > SYNCGUARD_MAX_TIME_MS / 10)
            return false;
        whole = whole * 10 + (*text - '0');
    }
    if (digits && *text == '.') {
        digits = false;
        for (text++; *text >= '0' && *text <= '9'; text++, digits = true) {
            if (scale < 1000000) { /* finer than that is below a millisecond of any unit we have */
                part = part * 10 + (*text - '0');
                scale *= 10;
            }
        }
    }
    int64_t unit = unit_ms(text);
    if (!digits || unit == 0 || whole > (SYNCGUARD_MAX_TIME_MS - unit) / unit)
        return false;
    *ms = whole * unit + part * unit / scale;
    return true;
}

static bool small_number(const char *text, int *out)
{
    char *end = NULL;
    if (*text < '0' || *text > '9')
        return false;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || end - text > 3 || value > 255)
        return false;
    *out = (int)value;
    return true;
}

static int bad_value(const cli_command *command, const option_row *row, const char *wanted)
{
    return cli_usage_error(command->name, "--%s: %s", row->name, wanted);
}

static int take_duration(const cli_command *command, const option_row *row, const char *value,
                         bool positive, int64_t *out)
{
    if (!cli_duration(value, out))
        return bad_value(command, row, "not a duration such as 500ms, 30s, 5m, 2h");
    if (positive && *out == 0)
        return bad_value(command, row, "must be at least 1ms");
    return CLI_OK;
}

static int take_on_lost(const cli_command *command, const option_row *row, const char *value,
                        cli_options *out)
{
    out->lost_warns = strcmp(value, "warn") == 0;
    if (!out->lost_warns && strcmp(value, "kill") != 0)
        return bad_value(command, row, "must be kill or warn");
    return CLI_OK;
}

static int take(const cli_command *command, const option_row *row, char *value, cli_options *out)
{
    switch (row->bit) {
    case CLI_BACKEND:
        out->backend = value;
        break;
    case CLI_NONBLOCK:
        out->nonblock = true;
        break;
    case CLI_WAIT:
        return take_duration(command, row, value, false, &out->wait_ms);
    case CLI_CONFLICT_CODE:
        if (!small_number(value, &out->conflict_code))
            return bad_value(command, row, "must be a number from 0 to 255");
        break;
    case CLI_TTL:
        return take_duration(command, row, value, true, &out->ttl_ms);
    case CLI_GRACE:
        return take_duration(command, row, value, false, &out->grace_ms);
    case CLI_ON_LOST:
        return take_on_lost(command, row, value, out);
    case CLI_MAX_HOLD:
        return take_duration(command, row, value, true, &out->max_hold_ms);
    case CLI_OWNER:
        out->owner = value;
        break;
    case CLI_ID:
        out->id = value;
        break;
    case CLI_RAW:
        out->raw = true;
        break;
    case CLI_PRINT:
        out->print = true;
        break;
    case CLI_PLOT:
        out->plot = value;
        break;
    case CLI_JSON:
        out->json = true;
        break;
    case CLI_VERBOSE:
        out->verbose = true;
        break;
    default:
        out->help = true;
        break;
    }
    return CLI_OK;
}

/* The tables that getopt_long wants, for the options of one command. */
static void build_tables(const cli_command *command, char *letters, struct option *names)
{
    if (command->options_first)
        *letters++ = '+';
    *letters++ = ':'; /* tell a missing value apart */
    for (size_t i = 0; i < ROWS; i++) {
        if ((command->takes & rows[i].bit) == 0)
            continue;
        if (rows[i].letter != 0) {
            *letters++ = rows[i].letter;
            if (rows[i].value != NULL)
                *letters++ = ':';
        }
        names->name = rows[i].name;
        names->has_arg = rows[i].value != NULL ? required_argument : no_argument;
        names->flag = NULL;
        names->val = 256 + (int)i;
        names++;
    }
    *letters = '\0';
    memset(names, 0, sizeof *names);
}

static const option_row *row_of(int found)
{
    if (found >= 256)
        return &rows[found - 256];
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].letter == found)
            return &rows[i];
    }
    return NULL;
}

/* What follows '=' is not repeated: it may be a URL with a password. */
static int bad_option(const cli_command *command, int found, char **argv)
{
    char name[64];
    const char *given = argv[optind - 1];
    if (optopt != 0 && optopt < 256) {
        snprintf(name, sizeof name, "-%c", optopt);
    } else if (optopt >= 256) {
        snprintf(name, sizeof name, "--%s", rows[optopt - 256].name);
    } else {
        cli_plain(given, name, sizeof name);
        name[strcspn(name, "=")] = '\0';
    }
    if (found == ':')
        return cli_usage_error(command->name, "option %s needs a value", name);
    if (optopt >= 256)
        return cli_usage_error(command->name, "option %s takes no value", name);
    return cli_usage_error(command->name, "unknown option %s", name);
}

/*
 * One lock id in 64 begins with a minus sign, and scripts do not expect that. No option looks like
 * one, so it is moved behind the options. Returns the new end of the options.
 */
static int lift_lock_id(const cli_command *command, int argc, char **argv)
{
    if (strcmp(command->operands, "LOCKID") != 0)
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

/* What the options say together, and the operands. */
static int check(const cli_command *command, const cli_options *out)
{
    if (out->nonblock && out->wait_ms != SYNCGUARD_WAIT_FOREVER)
        return cli_usage_error(command->name, "-n and -w exclude each other");
    if (out->grace_ms > out->ttl_ms / 3)
        return cli_usage_error(command->name, "--grace may be at most a third of --ttl");
    if (out->count < command->least)
        return cli_usage_error(command->name, "%s", command->missing);
    if (command->most >= 0 && out->count > command->most)
        return cli_usage_error(command->name, "too many arguments");
    return CLI_OK;
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out)
{
    char letters[2 * ROWS + 3];
    struct option names[ROWS + 1];
    int found = 0;

    memset(out, 0, sizeof *out);
    out->command = command;
    out->wait_ms = SYNCGUARD_WAIT_FOREVER;
    out->conflict_code = -1;
    out->ttl_ms = SYNCGUARD_DEFAULT_TTL_MS;
    out->grace_ms = -1;

    build_tables(command, letters, names);
    int end = lift_lock_id(command, argc, argv);
    opterr = 0;
    while ((found = getopt_long(end, argv, letters, names, NULL)) != -1) {
        if (found == '?' || found == ':')
            return bad_option(command, found, argv);
        int code = take(command, row_of(found), optarg, out);
        if (code != CLI_OK)
            return code;
        if (out->help)
            return CLI_OK;
    }
    out->count = argc - optind;
    out->operands = argv + optind;
    return check(command, out);
}

void cli_help(const cli_command *command)
{
    bool times = false;

    printf("usage: syncguard %s [options]%s%s\n%s\n\n", command->name,
           *command->operands != '\0' ? " " : "", command->operands, command->summary);
    for (size_t i = 0; i < ROWS; i++) {
        char name[48], left[64];
        if ((command->takes & rows[i].bit) == 0)
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
    printf("\n%sman syncguard-%s tells more.\n",
           times ? "A TIME is 500ms, 30s, 5m, 2h or a plain number of seconds.\n" : "",
           command->name);
}
