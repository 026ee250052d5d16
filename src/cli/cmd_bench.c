/*
 * syncguard bench: executes syncguard-bench, a separate program because it links the clients of all
 * stores and this one must start fast. It is in the same folder (of a build) or in libexec.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "exitcode.h"
#include "report.h"
#include "store.h"

#ifndef CLI_LIBEXEC /* relative to the folder of this program */
#define CLI_LIBEXEC "../libexec/syncguard"
#endif
#define MAX_GROUPS 40

/* The folder of this program, with a slash at the end. */
static bool bench_find_own_folder(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (length <= 0)
        return false;
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        return false;
    slash[1] = '\0';
    return true;
}

/* Whether the environment names a store. As in the library it is not used in setuid programs. */
static bool bench_environment_has_url(void)
{
#ifdef __GLIBC__
    const char *given = secure_getenv("SYNCGUARD_URL");
#else
    const char *given = getuid() == geteuid() ? getenv("SYNCGUARD_URL") : NULL;
#endif
    return given != NULL && *given != '\0';
}

/* A URL may contain a password, so it is passed in the environment, which ps does not show. */
static int bench_pass_url(const cli_options *options)
{
    char url[CLI_URL_SIZE];
    if (options->backend == NULL && !bench_environment_has_url())
        return unsetenv("SYNCGUARD_BENCH_URL") == 0 ? CLI_OK : CLI_INTERNAL;
    int code = cli_store_url(options, url);
    if (code == CLI_OK && setenv("SYNCGUARD_BENCH_URL", url, 1) != 0)
        code = CLI_NO_MEMORY;
    return code;
}

int cmd_bench(cli_options *options)
{
    static const char *const places[] = {"", CLI_LIBEXEC "/"};
    char program[] = "syncguard-bench";
    char json[] = "--json";
    char *words[MAX_GROUPS + 6];
    int count = 0;
    int code = bench_pass_url(options);
    if (code != CLI_OK)
        return code;
    words[count++] = program;
    if (options->json)
        words[count++] = json;
    char plot[] = "--plot";
    if (options->plot != NULL) {
        words[count++] = plot;
        words[count++] = options->plot;
    }
    for (int i = 0; i < options->count && i < MAX_GROUPS; i++)
        words[count++] = options->operands[i];
    words[count] = NULL;
    char folder[PATH_MAX];
    if (!bench_find_own_folder(folder)) {
        cli_message("cannot find the folder of this program");
        return CLI_INTERNAL;
    }
    char path[2 * PATH_MAX];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%ssyncguard-bench", folder, places[i]);
        execv(path, words);
    }
    cli_message("cannot run syncguard-bench: %s", strerror(errno));
    return errno == ENOENT ? CLI_NOT_FOUND : CLI_CANNOT_RUN;
}
