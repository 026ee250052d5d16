/*
 * syncguard bench: hands over to syncguard-bench, a program of its own because it needs the
 * clients of all stores and this one must start fast. It lies beside this one (in a build
 * folder), else in the tree's libexec folder.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

#ifndef CLI_LIBEXEC /* way from the folder of this program */
#define CLI_LIBEXEC "../libexec/syncguard"
#endif
#define MOST_WORDS 40

/* The folder of this program, with a slash at its end. */
static bool own_folder(char out[PATH_MAX])
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

/* Whether the environment names a store; as in the library not where others may have set it. */
static bool store_is_named(void)
{
#ifdef __GLIBC__
    const char *given = secure_getenv("SYNCGUARD_URL");
#else
    const char *given = getuid() == geteuid() ? getenv("SYNCGUARD_URL") : NULL;
#endif
    return given != NULL && *given != '\0';
}

/* A URL may hold a password: it travels in the environment, where ps does not show it. */
static int pass_url(const cli_options *options)
{
    char url[CLI_URL_SIZE];
    if (options->backend == NULL && !store_is_named())
        return unsetenv("SYNCGUARD_BENCH_URL") == 0 ? CLI_OK : CLI_INTERNAL;
    int code = cli_url(options, url);
    if (code == CLI_OK && setenv("SYNCGUARD_BENCH_URL", url, 1) != 0)
        code = CLI_NO_MEMORY;
    return code;
}

int cmd_bench(cli_options *options)
{
    static const char *const places[] = {"", CLI_LIBEXEC "/"};
    char folder[PATH_MAX], path[2 * PATH_MAX], program[] = "syncguard-bench";
    char json[] = "--json", plot[] = "--plot";
    char *words[MOST_WORDS + 6];
    int count = 0;

    int code = pass_url(options);
    if (code != CLI_OK)
        return code;
    words[count++] = program;
    if (options->json)
        words[count++] = json;
    if (options->plot != NULL) {
        words[count++] = plot;
        words[count++] = options->plot;
    }
    for (int i = 0; i < options->count && i < MOST_WORDS; i++)
        words[count++] = options->operands[i];
    words[count] = NULL;
    if (!own_folder(folder)) {
        cli_say("cannot find the folder of this program");
        return CLI_INTERNAL;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%ssyncguard-bench", folder, places[i]);
        execv(path, words);
    }
    cli_say("cannot run syncguard-bench: %s", strerror(errno));
    return errno == ENOENT ? CLI_NOT_FOUND : CLI_CANNOT_RUN;
}
