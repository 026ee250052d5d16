/*
 * The syncguard command: a table of commands, one file each (cmd_*.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

#define STORE (CLI_BACKEND | CLI_VERBOSE | CLI_HELP)

static const cli_command commands[] = {
    {"run", "KEY [--] COMMAND [ARGUMENT...]", "run a program while holding a lock",
     STORE | CLI_NONBLOCK | CLI_WAIT | CLI_CONFLICT_CODE | CLI_TTL | CLI_GRACE | CLI_ON_LOST |
         CLI_MAX_HOLD | CLI_OWNER,
     true, 2, -1, "a key and a command are needed", cmd_run},
    {"acquire", "KEY", "take a lock and print its id, fence and expiry",
     STORE | CLI_NONBLOCK | CLI_WAIT | CLI_CONFLICT_CODE | CLI_TTL | CLI_OWNER | CLI_JSON, false, 1,
     1, "a key is needed", cmd_acquire},
    {"release", "LOCKID", "release the lock with this id", STORE, false, 1, 1,
     "a lock id is needed", cmd_release},
    {"extend", "LOCKID", "move the expiry of the lock with this id", STORE | CLI_TTL | CLI_JSON,
     false, 1, 1, "a lock id is needed", cmd_extend},
    {"status", "KEY | --id LOCKID", "tell whether a lock is held",
     STORE | CLI_ID | CLI_RAW | CLI_JSON, false, 0, 1, "a key is needed", cmd_status},
    {"list", "", "list the locks that are held", STORE | CLI_RAW | CLI_JSON, false, 0, 0, "",
     cmd_list},
    {"setup", "", "prepare the store: tables that it needs", STORE | CLI_PRINT, false, 0, 0, "",
     cmd_setup},
    {"doctor", "", "look for what would break the promises on this store", STORE | CLI_JSON, false,
     0, 0, "", cmd_doctor},
    {"bench", "[GROUP...]", "measure this machine and store against plain clients",
     CLI_BACKEND | CLI_JSON | CLI_PLOT | CLI_HELP, false, 0, -1, "", cmd_bench},
    {"version", "", "print the version", CLI_JSON | CLI_HELP, false, 0, 0, "", cmd_version},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static const cli_command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static void overview(FILE *out)
{
    fputs("usage: syncguard COMMAND [options] ...\n"
          "Locks between processes and machines, on the store that you already run.\n\n",
          out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fputs("\nThe store is -b URL, else the environment variable SYNCGUARD_URL, else a file of "
          "this user.\n"
          "'syncguard COMMAND --help' tells about one command, man syncguard about all.\n",
          out);
}

static int help(int argc, char **argv)
{
    const cli_command *command = argc > 2 ? find(argv[2]) : NULL;
    if (argc > 2 && command == NULL)
        return cli_usage_error(NULL, "unknown command");
    if (command != NULL)
        cli_help(command);
    else
        overview(stdout);
    return CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2)
        return cli_usage_error(NULL, "no command given");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help(argc, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    if (name[0] == '-')
        return cli_usage_error(NULL, "options come after the command");
    const cli_command *command = find(name);
    if (command == NULL) {
        /* A URL that was put there may hold a password. */
        if (strspn(name, "abcdefghijklmnopqrstuvwxyz-") != strlen(name) || strlen(name) > 20)
            return cli_usage_error(NULL, "the first argument is no command");
        return cli_usage_error(NULL, "unknown command '%s'", name);
    }

    cli_options options;
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
 * Started with a standard stream closed, the next descriptor that is opened would
 * take its number, and a message for people would go into a connection. So the
 * number is taken by something that can be neither read nor written; a child
 * gets it closed as it was.
 */
static void occupy_closed_streams(void)
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
    occupy_closed_streams();
    cli_signals_no_size_limit();
    int code = dispatch(argc, argv);
    /* What was asked for and could not be written is no success (a full disk, a closed pipe). */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK) {
        cli_say("cannot write the output");
        code = CLI_INTERNAL;
    }
    return code;
}
