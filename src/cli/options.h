/* The command line: which options a command takes, and their values. */
#ifndef SYNCGUARD_CLI_OPTIONS_H
#define SYNCGUARD_CLI_OPTIONS_H

#include <syncguard.h>

/* Options, as bits: which of them a command takes. */
enum {
    CLI_BACKEND = 1 << 0,
    CLI_NONBLOCK = 1 << 1,
    CLI_WAIT = 1 << 2,
    CLI_CONFLICT_CODE = 1 << 3,
    CLI_TTL = 1 << 4,
    CLI_GRACE = 1 << 5,
    CLI_ON_LOST = 1 << 6,
    CLI_MAX_HOLD = 1 << 7,
    CLI_OWNER = 1 << 8,
    CLI_ID = 1 << 9,
    CLI_RAW = 1 << 10,
    CLI_PRINT = 1 << 11,
    CLI_JSON = 1 << 12,
    CLI_VERBOSE = 1 << 13,
    CLI_HELP = 1 << 14,
    CLI_PLOT = 1 << 15,
    CLI_KEY = 1 << 16,
    CLI_FORCE = 1 << 17,
    CLI_SYSLOG = 1 << 18,
    CLI_WATCH = 1 << 19,
    CLI_SHELL = 1 << 20,
    CLI_FLOCK = 1 << 21, /* options of flock that change nothing here, or are refused */
    CLI_QUIET = 1 << 22,
    CLI_EXPORT_URL = 1 << 23,
    CLI_DRY_RUN = 1 << 24,
    CLI_METRICS = 1 << 25,
    CLI_MIN_HOLD = 1 << 26,
    CLI_KEYS = 1 << 27,
    CLI_SLOTS = 1 << 28,
    CLI_QUIET_HOLDER = 1 << 29
};

struct cli_options;

typedef struct cli_command {
    const char *name;
    const char *operands; /* for the usage line */
    const char *summary;
    unsigned takes;
    bool options_first; /* the first operand ends the options; the rest belongs to the program */
    int min_operands;
    int max_operands;    /* -1: any number */
    const char *missing; /* message for too few operands */
    int (*run)(struct cli_options *options);
} cli_command;

typedef struct cli_options {
    const cli_command *command;
    char *backend; /* as given with -b; NULL: the default */
    bool nonblock;
    int64_t wait_ms;   /* SYNCGUARD_WAIT_FOREVER unless -w was given */
    int conflict_code; /* -1 unless -E was given */
    int64_t ttl_ms;
    int64_t grace_ms; /* -1 unless --grace was given */
    bool warn_if_lost;
    int64_t max_hold_ms;
    int64_t min_hold_ms;
    int slots; /* 0 unless --slots was given */
    char *owner;
    char *id;
    char *key; /* as given with --key */
    /* Of run and acquire: as given with -k, else the first operand. */
    const char *keys[SYNCGUARD_LOCK_SET_MAX];
    int key_count;
    bool force;
    bool syslog;
    bool watch;
    char *shell; /* as given with -c: for sh */
    bool no_effect;
    bool quiet;
    bool export_url;
    bool dry_run;
    bool raw;
    bool print;
    char *plot;
    char *metrics;
    bool json;
    bool verbose;
    bool help;
    int count; /* operands */
    char **operands;
    char **program; /* of run: what follows the key */
} cli_options;

/* CLI_OK, or CLI_USAGE after one line on stderr. argv[0] is the command's name. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out);
/* The lock id that is the operand; "-" reads it from stdin into buffer. NULL after a message. */
const char *cli_lock_id(const cli_options *options, char buffer[SYNCGUARD_LOCK_ID_SIZE]);
void cli_help(const cli_command *command);

#endif
