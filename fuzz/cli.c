/* Command lines and durations. The first byte chooses the command, lines are arguments. */
#include <getopt.h>

#include "cli/exitcode.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/times.h"
#include "fuzz.h"

#define MAX_ARGUMENTS 64

static const cli_command commands[] = {
    {"run", "KEY [--] COMMAND [ARGUMENT...]", "", 0x7fff, true, 2, -1, "a key is missing", NULL},
    {"acquire", "KEY", "", 0x7fff, false, 1, 1, "a key is missing", NULL},
    {"release", "LOCKID", "", CLI_BACKEND | CLI_JSON | CLI_HELP, false, 1, 1, "no lock id", NULL},
    {"status", "[KEY]", "", CLI_BACKEND | CLI_ID | CLI_RAW | CLI_JSON | CLI_HELP, false, 0, 1, "",
     NULL},
};

/* The messages of the parser are not checked. */
int cli_usage_error(const char *format, ...)
{
    FUZZ_CHECK(format != NULL);
    return CLI_USAGE;
}

static void fuzz_cli_parse(uint8_t which, char *text)
{
    char name[] = "syncguard";
    char *argv[MAX_ARGUMENTS + 2] = {name};
    int argc = 1;
    const cli_command *command = &commands[which % (sizeof commands / sizeof *commands)];
    for (char *line = text; line != NULL && argc <= MAX_ARGUMENTS;) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end++ = '\0';
        argv[argc++] = line;
        line = end;
    }
    argv[argc] = NULL;
    optind = 0; /* glibc: start anew */
    cli_options options;
    int code = cli_parse(command, argc, argv, &options);
    FUZZ_CHECK(code == CLI_OK || code == CLI_USAGE);
    if (code != CLI_OK || options.help)
        return;
    FUZZ_CHECK(options.count >= command->min_operands && options.ttl_ms > 0);
    FUZZ_CHECK(options.conflict_code >= -1 && options.conflict_code <= 255);
    for (int i = 0; i < options.count; i++)
        FUZZ_CHECK(options.operands[i] != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t ms = -1;
    if (size == 0)
        return 0;
    char *text = fuzz_text(data + 1, size - 1);
    if (cli_parse_duration(text, &ms))
        FUZZ_CHECK(ms >= 0 && ms <= SYNCGUARD_MAX_TIME_MS);
    fuzz_cli_parse(data[0], text);
    free(text);
    return 0;
}
