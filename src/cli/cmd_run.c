/* syncguard run: acquires a lock, runs a command while it is held, and releases it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "child.h"
#include "commands.h"
#include "exitcode.h"
#include "metrics.h"
#include "report.h"
#include "signals.h"
#include "store.h"
#include "text.h"
#include "times.h"
#include "variables.h"
#include "waiting.h"

enum { RELEASE_AFTER_LOSS_MS = 1000 };

/* How the child ended. */
typedef struct ending {
    int signal; /* that killed the child, or ended this command before there was a child; else 0 */
    bool interrupted;
    bool never_ran;
} ending;

static void run_wake_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    (void)lock;
    (void)reason;
    cli_wake(); /* the main thread queries the lock itself */
}

/* Arguments of sh for the string of -c; NULL after a message. */
static char **shell_make_argv(char *string, char *const *rest)
{
    static char sh[] = "/bin/sh", c[] = "-c";
    static char *words[] = {sh, c, NULL, NULL};
    if (string == NULL || *rest != NULL) {
        cli_usage_error("-c takes one string, and no other command");
        return NULL;
    }
    words[2] = string;
    return words;
}

/* The command that follows the key; NULL after a message. */
static char **run_parse_command(const cli_options *options)
{
    char **rest = options->program;
    if (options->shell != NULL)
        return shell_make_argv(options->shell, rest);
    if (rest[0] == NULL) {
        cli_usage_error("%s", options->command->missing);
        return NULL;
    }
    if (strcmp(rest[0], "-c") == 0 || strcmp(rest[0], "--command") == 0)
        return shell_make_argv(rest[1], rest[1] != NULL ? rest + 2 : rest + 1);
    if (strcmp(rest[0], "--") == 0) {
        rest++;
    } else if (rest[0][0] == '-') {
        char shown[32];
        cli_escape(rest[0], shown, sizeof shown);
        /* The message omits the value, which may be a URL with a password. */
        shown[shown[1] == '-' ? strcspn(shown, "=") : 2] = '\0';
        cli_usage_error("option %s follows the key; options go before the key", shown);
        return NULL;
    }
    if (rest[0] == NULL) {
        cli_usage_error("%s", options->command->missing);
        return NULL;
    }
    return rest;
}

static int run_child(const cli_options *options, syncguard_lock_set *set, char **command,
                     ending *end)
{
    cli_variables variables;
    int code = CLI_NO_MEMORY;
    cli_variables_make(&variables, options, set);
    if (variables.list == NULL) {
        cli_message("no memory is left");
        return code;
    }
    cli_signals_forward_stop();
    cli_child child = CLI_CHILD_INIT;
    code = cli_supervise(options, set, &child, command, variables.list);
    end->never_ran = child.never_ran;
    end->signal = child.died_of;
    end->interrupted = child.interrupted;
    cli_child_free(&child);
    cli_variables_free(&variables);
    return code;
}

/* The command continued without the lock (--on-lost=warn), or ended before the loss was found. */
static int run_report_loss(const char *keys, int code)
{
    if (code == CLI_OK)
        cli_message("the lock %s was lost before the command ended", keys);
    else
        cli_message("the lock %s was lost before the command ended (with exit code %d)", keys,
                    code);
    return CLI_LOST;
}

/*
 * A lock that is gone at its release was lost while the command ran. After a loss the store
 * probably does not answer, and the lease ends soon or is over, so the release gets only a short
 * timeout.
 */
static int run_release_locks(const cli_options *options, syncguard_lock_set *set, int code,
                             bool *was_lost)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_error err;
    *was_lost = syncguard_lock_set_lost(set) != SYNCGUARD_LOST_NO;
    if (code == CLI_LOST || *was_lost)
        call.timeout_ms = RELEASE_AFTER_LOSS_MS;
    syncguard_status status = syncguard_lock_set_release(set, &call, &err);
    if (status < 0)
        cli_release_error(NULL, &err, options->keys[0], NULL, "command");
    *was_lost = *was_lost || status == SYNCGUARD_ABSENT;
    if (code == CLI_LOST || !*was_lost)
        return code;
    char keys[CLI_KEY_NAMES_SIZE];
    cli_key_names(options, keys);
    return run_report_loss(keys, code);
}

/* Nothing ran, so --min-hold must not keep others from running it: the release has only shortened
 * the leases, and the locks are removed by their ids. */
static void run_remove_unused_locks(const cli_waiting *waiting, const syncguard_lock_set *set)
{
    for (size_t i = 0; i < syncguard_lock_set_count(set); i++) {
        const syncguard_lock *lock = syncguard_lock_set_at(set, i);
        syncguard_error err;
        if (syncguard_release(waiting->backend, syncguard_lock_id(lock), NULL, &err) < 0)
            cli_release_error(NULL, &err, syncguard_lock_key(lock), NULL, "command");
    }
}

/* Called after the end of the child, so that the lookup delays nothing. */
static void run_report_next_holder(cli_waiting *waiting)
{
    char key[4 * SYNCGUARD_KEY_SIZE], holder[512];
    cli_holder(waiting, holder, sizeof holder);
    cli_escape(waiting->key, key, sizeof key);
    if (holder[0] != '\0')
        cli_message("'%s' is now %s", key, holder);
}

/*
 * Ctrl-C went to the child's group, which had the terminal. A script that started this command
 * expects it too, so our group gets the signal, and this process dies of it.
 */
static void run_forward_interrupt(void)
{
    struct sigaction act;
    if (getpgrp() == getpid())
        return; /* a shell started this command directly and sees the exit code */
    memset(&act, 0, sizeof act);
    act.sa_handler = SIG_DFL;
    sigaction(SIGINT, &act, NULL);
    kill(0, SIGINT);
}

static syncguard_lock_options run_make_lock_options(const cli_options *options)
{
    syncguard_lock_options how = SYNCGUARD_LOCK_OPTIONS_INIT;
    how.auto_extend = true;
    how.max_hold_ms = options->max_hold_ms;
    how.min_hold_ms = options->min_hold_ms;
    how.on_lost = run_wake_on_lost;
    return how;
}

static int run_locked(const cli_options *options, cli_waiting *waiting, char **command, ending *end,
                      cli_run_figures *figures)
{
    syncguard_lock_options how = run_make_lock_options(options);
    syncguard_lock_set *set = NULL;
    int code = cli_acquire(waiting, &how, &set);
    int64_t now = cli_now_ms();
    figures->waited_ms = now - waiting->begun_ms;
    figures->acquired = set != NULL;
    if (set == NULL)
        return code;
    char waited[24];
    cli_format_duration(figures->waited_ms, waited, sizeof waited);
    const syncguard_lock *first = syncguard_lock_set_at(set, 0);
    if (options->slots > 0)
        cli_verbose("acquired slot %d after %s, fence %s", syncguard_lock_slot(first), waited,
                    syncguard_lock_fence(first));
    else
        cli_verbose("acquired after %s, fence %s", waited, syncguard_lock_fence(first));
    end->signal = cli_signals_ended();
    end->never_ran = true;
    code = CLI_SIGNAL_BASE + end->signal;
    if (end->signal == 0)
        code = run_child(options, set, command, end);
    bool absent = syncguard_lock_set_lost(set) == SYNCGUARD_LOST_ABSENT;
    figures->held_ms = cli_now_ms() - now;
    code = run_release_locks(options, set, code, &figures->lost);
    if (end->never_ran && options->min_hold_ms > 0)
        run_remove_unused_locks(waiting, set);
    if (code == CLI_LOST && absent)
        run_report_next_holder(waiting);
    syncguard_lock_set_dispose(set);
    return code;
}

/*
 * Whether keys, times and owner label are valid, so that a failure has another cause than the
 * command line. A store in memory checks them: it refuses nothing else, and no other process uses
 * it.
 */
static bool run_arguments_are_valid(const cli_options *options)
{
    syncguard_options store = SYNCGUARD_OPTIONS_INIT;
    syncguard_lock_options how = run_make_lock_options(options);
    size_t count = (size_t)options->key_count;
    store.owner = options->owner;
    how.ttl_ms = options->ttl_ms;
    how.slots = options->slots;
    syncguard_backend *memory = NULL;
    syncguard_status status = syncguard_open("memory:", &store, &memory, NULL);
    syncguard_lock_set *set = NULL;
    if (status == SYNCGUARD_OK)
        status = syncguard_lock_try_all(memory, options->keys, count, &how, &set, NULL);
    syncguard_lock_set_dispose(set);
    syncguard_close(memory);
    return status != SYNCGUARD_E_INVALID_ARGUMENT;
}

/* The label of the metrics: the key as it is, or the names of all. */
static const char *run_metrics_label(const cli_options *options, char names[CLI_KEY_NAMES_SIZE])
{
    if (options->key_count == 1)
        return options->keys[0];
    cli_key_names(options, names);
    return names;
}

int cmd_run(cli_options *options)
{
    cli_waiting waiting;
    ending end = {0, false, false};
    cli_run_figures figures = {0};
    char **command = run_parse_command(options);
    if (command == NULL)
        return CLI_USAGE;
    int code = cli_waiting_open(&waiting, options, getpid());
    if (code == CLI_OK)
        code = run_locked(options, &waiting, command, &end, &figures);
    else
        figures.waited_ms = cli_now_ms() - waiting.begun_ms;
    cli_waiting_close(&waiting);
    char keys[CLI_KEY_NAMES_SIZE];
    /* No metrics are written after an error on the command line, which is not an attempt. */
    if (options->metrics != NULL &&
        (figures.acquired || code != CLI_USAGE || run_arguments_are_valid(options)))
        cli_metrics_write(options->metrics, run_metrics_label(options, keys), &figures, code);
    if (end.interrupted)
        run_forward_interrupt();
    if (code == CLI_SIGNAL_BASE + end.signal)
        cli_signals_die_of(end.signal);
    return code;
}
