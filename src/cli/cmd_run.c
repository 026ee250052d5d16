/* syncguard run: acquire, start the command, watch over it, release. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { VARIABLES = 4 };

static void on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    (void)lock;
    (void)reason;
    cli_wake(); /* the main thread asks the lock itself */
}

/* Finds the command behind the key; NULL after saying what is wrong. */
static char **command_of(const cli_options *options)
{
    char **rest = options->operands + 1;
    if (strcmp(rest[0], "--") == 0) {
        rest++;
    } else if (rest[0][0] == '-') {
        char shown[32];
        cli_plain(rest[0], shown, sizeof shown);
        /* Not its value: that may be a URL with a password. */
        shown[shown[1] == '-' ? strcspn(shown, "=") : 2] = '\0';
        cli_usage_error("run", "option %s follows the key; options go before the key", shown);
        return NULL;
    }
    if (rest[0] == NULL) {
        cli_usage_error("run", "%s", options->command->missing);
        return NULL;
    }
    return rest;
}

/* Whether an inherited variable is one of those that we set (under an outer run). */
static bool is_ours(const char *variable)
{
    static const char *const names[] = {
        "SYNCGUARD_KEY=", "SYNCGUARD_LOCK_ID=", "SYNCGUARD_FENCE=", "SYNCGUARD_EXPIRES_AT_MS="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    }
    return false;
}

/*
 * The child's environment. Built beside ours, because threads of the libraries
 * may be reading that; texts holds the four variables.
 */
static char **environment(const syncguard_lock *lock,
                          char texts[VARIABLES][SYNCGUARD_KEY_SIZE + 32])
{
    size_t count = 0, used = 0;
    while (environ[count] != NULL)
        count++;
    char **result = calloc(count + VARIABLES + 1, sizeof *result);
    if (result == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        if (!is_ours(environ[i]))
            result[used++] = environ[i];
    }
    size_t size = sizeof texts[0];
    snprintf(texts[0], size, "SYNCGUARD_KEY=%s", syncguard_lock_key(lock));
    snprintf(texts[1], size, "SYNCGUARD_LOCK_ID=%s", syncguard_lock_id(lock));
    snprintf(texts[2], size, "SYNCGUARD_FENCE=%s", syncguard_lock_fence(lock));
    snprintf(texts[3], size, "SYNCGUARD_EXPIRES_AT_MS=%lld",
             (long long)syncguard_lock_expires_at_ms(lock));
    for (size_t i = 0; i < VARIABLES; i++)
        result[used++] = texts[i];
    return result;
}

static syncguard_status take_lock(const cli_options *options, cli_waiting *waiting,
                                  syncguard_lock **lock, syncguard_error *err)
{
    syncguard_lock_options how = SYNCGUARD_LOCK_OPTIONS_INIT;
    how.auto_extend = true;
    how.max_hold_ms = options->max_hold_ms;
    how.on_lost = on_lost;
    return cli_acquire(waiting, &how, lock, err);
}

static int run_child(const cli_options *options, syncguard_lock *lock, char **command,
                     bool *interrupted)
{
    char texts[VARIABLES][SYNCGUARD_KEY_SIZE + 32];
    cli_child child = CLI_CHILD_INIT;
    int code = CLI_NO_MEMORY;
    char **variables = environment(lock, texts);
    if (variables == NULL) {
        cli_say("no memory is left");
        return code;
    }
    cli_signals_forward_stop();
    code = cli_child_start(&child, command, variables, !options->lost_warns);
    if (code == CLI_OK)
        code = cli_supervise(options, lock, &child, command[0]);
    *interrupted = child.interrupted;
    cli_child_free(&child);
    free(variables);
    return code;
}

/* The command went on without the lock (--on-lost=warn), or had ended when that was found. */
static int lost(int code)
{
    if (code == CLI_OK)
        cli_say("the lock was lost before the command ended");
    else
        cli_say("the lock was lost before the command ended (with exit code %d)", code);
    return CLI_LOST;
}

/* Releases; a lock that turns out to be gone was lost while the command ran. */
static int let_go(syncguard_lock *lock, int code)
{
    syncguard_error err;
    bool was_lost = syncguard_lock_lost(lock) != SYNCGUARD_LOST_NO;
    syncguard_status status = syncguard_lock_release(lock, NULL, &err);
    if (status < 0)
        cli_release_error(NULL, &err, NULL, NULL, "command");
    if (code != CLI_LOST && (was_lost || status == SYNCGUARD_ABSENT))
        return lost(code);
    return code;
}

/*
 * Ctrl-C went to the child's group, which had the terminal. A script that called
 * us must hear of it too, in the way that scripts understand: the group gets the
 * signal, and we die of it.
 */
static void pass_interrupt_on(void)
{
    struct sigaction act;
    if (getpgrp() == getpid())
        return; /* a shell started us on our own and sees the exit code */
    memset(&act, 0, sizeof act);
    act.sa_handler = SIG_DFL;
    sigaction(SIGINT, &act, NULL);
    kill(0, SIGINT);
}

static int run_under(const cli_options *options, cli_waiting *waiting, char **command,
                     bool *interrupted)
{
    syncguard_error err;
    syncguard_lock *lock = NULL;
    syncguard_status status = take_lock(options, waiting, &lock, &err);
    if (status != SYNCGUARD_OK)
        return cli_not_acquired(options, status, &err);
    cli_tell("acquired after %lld ms, fence %s", (long long)(cli_now_ms() - waiting->begun_ms),
             syncguard_lock_fence(lock));

    int code = CLI_SIGNAL_BASE + cli_signals_ended();
    if (cli_signals_ended() == 0)
        code = run_child(options, lock, command, interrupted);
    code = let_go(lock, code);
    syncguard_lock_dispose(lock);
    return code;
}

int cmd_run(cli_options *options)
{
    char label[SYNCGUARD_OWNER_SIZE];
    syncguard_abort *abort_object = NULL;
    cli_waiting waiting;
    syncguard_error err;
    bool interrupted = false;
    char **command = command_of(options);
    if (command == NULL)
        return CLI_USAGE;

    int code = cli_signals_start();
    if (code != CLI_OK)
        return code;
    if (syncguard_abort_create(&abort_object, &err) != SYNCGUARD_OK)
        return cli_failure(options, &err);
    cli_signals_abort(abort_object);
    cli_waiting_begin(&waiting, options, abort_object);
    code = cli_open(options, cli_owner(options, getpid(), label), &waiting, &waiting.backend);
    if (code == CLI_OK)
        code = run_under(options, &waiting, command, &interrupted);
    syncguard_close(waiting.backend);
    cli_signals_abort(NULL);
    syncguard_abort_free(abort_object);
    if (interrupted)
        pass_interrupt_on();
    return code;
}
