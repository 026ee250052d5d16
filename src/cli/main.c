/*
 * The syncguard command: a table of commands, one file each (cmd_*.c). It uses public headers only
 * and links the shared library. Results go to stdout, messages to stderr.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "exitcode.h"
#include "report.h"
#include "signals.h"
#include "watchdog.h"

#define STORE (CLI_BACKEND | CLI_VERBOSE | CLI_HELP)

static const cli_command commands[] = {
    {"run",
     "KEY [--] COMMAND [ARGUMENT...]\n"
     "       syncguard run [options] KEY -c STRING\n"
     "       syncguard run [options] -k KEY... [--] COMMAND [ARGUMENT...]",
     "run a program while holding a lock",
     STORE | CLI_NONBLOCK | CLI_WAIT | CLI_CONFLICT_CODE | CLI_TTL | CLI_GRACE | CLI_ON_LOST |
         CLI_MAX_HOLD | CLI_MIN_HOLD | CLI_KEYS | CLI_SLOTS | CLI_OWNER | CLI_METRICS |
         CLI_EXPORT_URL | CLI_SHELL | CLI_FLOCK | CLI_QUIET_HOLDER,
     true, 1, -1, "a key and a command are needed", cmd_run},
    {"acquire", "KEY", "acquire a lock and print its id, fence and expiry",
     STORE | CLI_NONBLOCK | CLI_WAIT | CLI_CONFLICT_CODE | CLI_TTL | CLI_SLOTS | CLI_OWNER |
         CLI_QUIET | CLI_JSON,
     false, 1, 1, "a key is needed", cmd_acquire},
    {"release", "LOCKID | - | --key KEY --force", "release a lock by its id, or by force",
     STORE | CLI_KEY | CLI_FORCE | CLI_SYSLOG, false, 0, 1, "", cmd_release},
    {"extend", "LOCKID | -", "extend the lock with this id", STORE | CLI_TTL | CLI_JSON, false, 1,
     1, "a lock id is needed", cmd_extend},
    {"status", "KEY | --id LOCKID", "show whether a lock is held, and by whom",
     STORE | CLI_ID | CLI_RAW | CLI_JSON, false, 0, 1, "a key is needed", cmd_status},
    {"list", "[PATTERN]", "list the locks that are held, and by whom",
     STORE | CLI_RAW | CLI_JSON | CLI_WATCH, false, 0, 1, "", cmd_list},
    {"prune", "", "remove the records of locks that have expired", STORE | CLI_DRY_RUN | CLI_JSON,
     false, 0, 0, "", cmd_prune},
    {"setup", "", "create the tables that the store needs", STORE | CLI_PRINT, false, 0, 0, "",
     cmd_setup},
    {"doctor", "", "check the store for settings that would break a guarantee", STORE | CLI_JSON,
     false, 0, 0, "", cmd_doctor},
    {"config", "", "show which store is used, and why", STORE | CLI_JSON, false, 0, 0, "",
     cmd_config},
    {"bench", "[GROUP...]", "compare the speed of this library with that of plain clients",
     CLI_BACKEND | CLI_JSON | CLI_PLOT | CLI_HELP, false, 0, -1, "", cmd_bench},
    {"version", "", "print the version", CLI_JSON | CLI_HELP, false, 0, 0, "", cmd_version},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static const cli_command *command_find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static void command_print_overview(FILE *out)
{
    fputs("usage: syncguard COMMAND [options] ...\n"
          "Locks across processes and machines, in the store that you already run.\n\n",
          out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fputs("\nThe store is given by -b URL, the environment variable SYNCGUARD_URL or a file;\n"
          "by default it is an SQLite file of this user. 'syncguard config' shows which\n"
          "store is used. For one command see 'syncguard COMMAND --help'; for all, see\n"
          "man syncguard.\n",
          out);
}

static int command_print_help(int argc, char **argv)
{
    const cli_command *command = argc > 2 ? command_find(argv[2]) : NULL;
    if (argc > 2 && command == NULL)
        return cli_usage_error("unknown command");
    if (command != NULL)
        cli_help(command);
    else
        command_print_overview(stdout);
    return CLI_OK;
}

static int command_dispatch(int argc, char **argv)
{
    if (argc < 2)
        return cli_usage_error("no command given");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return command_print_help(argc, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    if (name[0] == '-')
        return cli_usage_error("options come after the command");
    const cli_command *command = command_find(name);
    if (command == NULL) {
        /* The argument may be a URL with a password. */
        if (strspn(name, "abcdefghijklmnopqrstuvwxyz-") != strlen(name) || strlen(name) > 20)
            return cli_usage_error("the first argument is not a command");
        return cli_usage_error("unknown command '%s'", name);
    }
    cli_options options;
    cli_set_command(command->name);
    int code = cli_parse(command, argc - 1, argv + 1, &options);
    if (code != CLI_OK)
        return code;
    if (options.help) {
        cli_help(command);
        return CLI_OK;
    }
    cli_set_verbose(options.verbose);
    return command->run(&options);
}

/*
 * If a standard stream is closed at start, the next descriptor that is opened gets its number, and
 * a message would be written to a connection. So /dev/null takes the number, opened in the
 * direction that a standard stream does not use; a child finds it closed.
 */
static void streams_occupy_closed(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int flags = (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC;
            int taken = open("/dev/null", flags); /* the lowest free number: fd */
            (void)taken;
        }
    }
}

int main(int argc, char **argv)
{
    streams_occupy_closed();
    cli_watchdog_note_arguments(argc, argv);
    cli_signals_ignore_size_limit();
    int code = command_dispatch(argc, argv);
    /* Output that could not be written (a full disk, a closed pipe) is a failure. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK) {
        cli_message("cannot write the output");
        code = CLI_INTERNAL;
    }
    cli_signals_die();
    return code;
}
