/*
 * What the files of the command share. The command is a guest of the library:
 * it uses public headers only, and links the shared library.
 *
 * One invocation is one command of the table in main.c: options are parsed into
 * a cli_options, the command's function does the work and returns the exit code.
 * Everything for people goes to stderr as one line each, everything that was
 * asked for goes to stdout.
 */
#ifndef SYNCGUARD_CLI_H
#define SYNCGUARD_CLI_H

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

#include <syncguard.h>

/* Exit codes; the child's own code and 128 + signal come on top. */
enum {
    CLI_OK = 0,
    CLI_CONFLICT = 1, /* held by somebody else, or absent */
    CLI_USAGE = 64,
    CLI_UNAVAILABLE = 69,
    CLI_INTERNAL = 70,
    CLI_NO_MEMORY = 71,
    CLI_TIMEOUT = 75,
    CLI_LOST = 76,
    CLI_NO_AUTH = 77,
    CLI_CANNOT_RUN = 126,
    CLI_NOT_FOUND = 127,
    CLI_SIGNAL_BASE = 128
};

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
    CLI_PLOT = 1 << 15
};

struct cli_options;

typedef struct cli_command {
    const char *name;
    const char *operands; /* for the usage line */
    const char *summary;
    unsigned takes;
    bool options_first; /* the first operand ends the options: what follows is another program's */
    int least, most;    /* operands; most -1: any number */
    const char *missing;
    int (*run)(struct cli_options *options);
} cli_command;

typedef struct cli_options {
    const cli_command *command;
    const char *backend; /* as given with -b; NULL: the default */
    bool nonblock;
    int64_t wait_ms;   /* SYNCGUARD_WAIT_FOREVER unless -w was given */
    int conflict_code; /* -1 unless -E was given */
    int64_t ttl_ms;
    int64_t grace_ms; /* -1 unless --grace was given */
    bool lost_warns;
    int64_t max_hold_ms;
    const char *owner;
    const char *id;
    bool raw;
    bool print;
    char *plot;
    bool json;
    bool verbose;
    bool help;
    int count; /* operands */
    char **operands;
} cli_options;

/* options.c */
/* CLI_OK, or CLI_USAGE after one line on stderr. argv[0] is the command's name. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out);
void cli_help(const cli_command *command);
/* "1.5", "500ms", "30s", "5m", "2h", "1d"; a plain number is seconds. */
bool cli_duration(const char *text, int64_t *ms);

/* exitcode.c */
int cli_exit_code(syncguard_status status);

/* report.c: lines on stderr */
void cli_set_verbose(bool on);
/* "syncguard: ..." and a newline, in one write. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Only with -v. */
void cli_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* With -v or on a terminal: for outcomes that the exit code tells to a script. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what is wrong with the command line; returns CLI_USAGE. */
int cli_usage_error(const char *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Says why an operation failed; returns its exit code. */
int cli_failure(const cli_options *options, const syncguard_error *err);
/* For syncguard_options. */
void cli_log(void *context, syncguard_log_level level, const char *message);
void cli_release_error(void *context, const syncguard_error *error, const char *key,
                       const char *lock_id, const char *source);
/* Shows text (or nothing, to clear it) on a line that the next call or message replaces. */
void cli_status_line(const char *text);
/* True if stderr is a terminal that can replace a line. */
bool cli_on_terminal(void);
/* True if it is, and this process stands in its foreground. */
bool cli_may_show_line(void);

/* store.c */
typedef struct cli_waiting cli_waiting;
/* Opens the store that the options name. owner may be NULL; so may waiting, else a server that
 * cannot be reached is tried again as -n and -w say. CLI_OK or an exit code. */
int cli_open(const cli_options *options, const char *owner, cli_waiting *waiting,
             syncguard_backend **out);
/* The URL itself, into a buffer of CLI_URL_SIZE bytes; CLI_OK or an exit code. */
#define CLI_URL_SIZE 8193
int cli_url(const cli_options *options, char *buffer);
/* The URL without user, password and options: fit for screens. */
void cli_url_shown(const char *url, char *out, size_t size);
/* The label of this command's locks: --owner, or user@host:pid. */
const char *cli_owner(const cli_options *options, pid_t pid, char buffer[SYNCGUARD_OWNER_SIZE]);

/* json.c: one object per line on stdout */
typedef struct cli_json {
    FILE *out;
    bool first;
} cli_json;
void cli_json_begin(cli_json *json);
void cli_json_text(cli_json *json, const char *name, const char *value);
void cli_json_int(cli_json *json, const char *name, int64_t value);
void cli_json_bool(cli_json *json, const char *name, bool value);
void cli_json_end(cli_json *json);

/* show.c: locks and times for people */
/* text with control characters and backslashes escaped: one line, harmless on a terminal. Cut at
 * the end of a whole character. */
void cli_plain(const char *text, char *out, size_t size);
/* The same for a message whose parts may have been escaped already: backslashes stay. */
void cli_harmless(const char *text, char *out, size_t size);
/* Length of the well-formed UTF-8 character at text (NUL-terminated), 0 if there is none. */
size_t cli_character(const unsigned char *text);
/* The character of that length. */
uint32_t cli_code_point(const unsigned char *text, size_t length);
/* True for what must not reach a terminal: controls and format characters. */
bool cli_steers(uint32_t point);
/* "2026-01-31 12:00:00" in local time. */
void cli_time(int64_t ms, char *out, size_t size);
/* "850ms", "12s", "3m05s", "2h03m", "4d02h"; negative is "0s". */
void cli_span(int64_t ms, char *out, size_t size);
int64_t cli_wall_ms(void);
/* The fields that every lock has, into an open object. raw may be NULL. */
void cli_json_lock(cli_json *json, const syncguard_lock_info *info,
                   const syncguard_lock_info_raw *raw);

/* signals.c */
/* A file that may not grow (ulimit -f) is an error like a full disk, not a reason to die. */
void cli_signals_no_size_limit(void);
/* Makes the wake-up pipe and catches what ends or stops the command. CLI_OK or an exit code. */
int cli_signals_start(void);
/* What the signals that end a waiting acquire trigger. NULL: nothing more. */
void cli_signals_abort(syncguard_abort *abort_object);
/* The first of the signals that asked us to end, or 0. */
int cli_signals_ended(void);
/* Number of a signal that came and was not taken yet, or 0. */
int cli_signals_take(void);
/* Readable after a signal or cli_wake. */
int cli_wake_fd(void);
void cli_wake(void);
void cli_wake_drain(void);
/* From here on SIGTSTP is for the child. */
void cli_signals_forward_stop(void);
/* Stops this process and its group as an untended one would, until it is continued. False if it
 * could not be stopped (nobody there who could continue it). */
bool cli_signals_stop(int signal_number);
/* In a forked child before exec, with all signals blocked: as they were before start. */
void cli_signals_reset(void);
/* Blocks all signals; for the time around a fork. */
void cli_signals_block(sigset_t *before);

/* waiting.c */
struct cli_waiting {
    const cli_options *options;
    syncguard_backend *backend;
    syncguard_abort *abort_object;
    int64_t begun_ms; /* on the clock of cli_now_ms */
    int64_t next_look_ms;
};
void cli_waiting_begin(cli_waiting *waiting, const cli_options *options,
                       syncguard_abort *abort_object);
/* After a try that failed: says so, pauses, and is true if there is to be another one. */
bool cli_wait_for_store(cli_waiting *waiting, const syncguard_error *err);
/* Acquires as -n, -w and --ttl say; how is changed accordingly. */
syncguard_status cli_acquire(cli_waiting *waiting, syncguard_lock_options *how,
                             syncguard_lock **lock, syncguard_error *err);
/* Exit code of a status other than OK, after saying it: conflict, timeout, signal or failure. */
int cli_not_acquired(const cli_options *options, syncguard_status status,
                     const syncguard_error *err);

/* child.c: the process group under the lock, and the terminal */
struct termios;
typedef struct cli_child {
    pid_t pid; /* also its process group */
    int exec_pipe;
    int tty; /* -1: none */
    bool wants_tty;
    bool handed_over;
    bool interrupted; /* died of SIGINT while it had the terminal */
    struct termios *modes;
} cli_child;
#define CLI_CHILD_INIT                                                                             \
    {                                                                                              \
        -1, -1, -1, false, false, false, NULL                                                      \
    }
/* Starts argv in a process group of its own. CLI_OK or an exit code after one line. */
int cli_child_start(cli_child *child, char **argv, char **variables, bool dies_with_us);
/* errno of a failed exec, or 0. */
int cli_child_exec_error(cli_child *child);
void cli_child_signal(const cli_child *child, int signal_number);
/* True while a process of the group is there. */
bool cli_child_group_alive(const cli_child *child);
/* Gives the terminal to the child if this process is in its foreground. True if it did. */
bool cli_child_give_terminal(cli_child *child);
/* Takes it back; restore_modes also undoes what the child left behind. */
void cli_child_take_terminal(cli_child *child, bool restore_modes);
void cli_child_free(cli_child *child);

/* guard.c: a process that ends the child's group should this one be killed or stand still */
typedef struct cli_guard {
    pid_t pid;
    int pipe;
} cli_guard;
#define CLI_GUARD_INIT                                                                             \
    {                                                                                              \
        -1, -1                                                                                     \
    }
void cli_guard_start(cli_guard *guard, pid_t group, int64_t grace_ms);
/* The lease ends then, on the clock of cli_now_ms, unless more is told. */
void cli_guard_tell(const cli_guard *guard, int64_t lease_end_ms);
void cli_guard_stop(cli_guard *guard);

/* supervise.c */
/* Watches over the child until it has ended; returns the exit code. command is for messages. */
int cli_supervise(const cli_options *options, syncguard_lock *lock, cli_child *child,
                  const char *command);
/* Milliseconds of a clock that cannot step and goes on in suspend. */
int64_t cli_now_ms(void);

/* cmd_*.c */
int cmd_run(cli_options *options);
int cmd_bench(cli_options *options);
int cmd_acquire(cli_options *options);
int cmd_release(cli_options *options);
int cmd_extend(cli_options *options);
int cmd_status(cli_options *options);
int cmd_list(cli_options *options);
int cmd_setup(cli_options *options);
int cmd_doctor(cli_options *options);
int cmd_version(cli_options *options);

#endif
