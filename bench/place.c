/*
 * Where a measurement writes: a place of its own beside the other contents of the store, with a
 * unique name. Only records with that name are ever removed.
 *
 * A place is a URL whose options contain the name: a key prefix, tables, collections, a folder. A
 * store without such an option keeps nothing.
 */
#include <ftw.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

void bench_make_name(char out[BENCH_NAME_SIZE])
{
    unsigned char random[6];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        bench_die("getrandom", "failed");
    snprintf(out, BENCH_NAME_SIZE, "syncguard_bench_%02x%02x%02x%02x%02x%02x", random[0], random[1],
             random[2], random[3], random[4], random[5]);
}

static bool is_named(const char *option, const char *name)
{
    size_t length = strlen(name);
    return strncmp(option, name, length) == 0 && option[length] == '=';
}

bool bench_option(const char *url, const char *name, char *out, size_t size)
{
    const char *at = url + strcspn(url, "?");
    while (*at != '\0') {
        at++;
        size_t length = strcspn(at, "&");
        if (is_named(at, name)) {
            size_t head = strlen(name) + 1;
            snprintf(out, size, "%.*s", (int)(length - head), at + head);
            return true;
        }
        at += length;
    }
    return false;
}

void bench_set_option(const char *url, const char *name, const char *value, char *out, size_t size)
{
    const char *at = url + strcspn(url, "?");
    char mark = '?';
    size_t used = (size_t)snprintf(out, size, "%.*s", (int)(at - url), url);
    while (*at != '\0' && used < size) {
        at++;
        size_t length = strcspn(at, "&");
        if (!is_named(at, name) && length > 0) {
            used += (size_t)snprintf(out + used, size - used, "%c%.*s", mark, (int)length, at);
            mark = '&';
        }
        at += length;
    }
    if (used < size)
        used += (size_t)snprintf(out + used, size - used, "%c%s=%s", mark, name, value);
    if (used >= size)
        bench_die("URL", "too long");
}

/* ---- a folder for files of ours ---- */

static char folder[4096];

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    (void)facts;
    (void)kind;
    (void)where;
    return remove(path);
}

void bench_remove_tree(const char *path)
{
    struct stat facts;
    if (lstat(path, &facts) == 0 && nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "syncguard-bench: %s is left\n", path);
}

void bench_make_folder(void)
{
    char here[3900];
    if (getcwd(here, sizeof here) == NULL || access(here, W_OK) != 0)
        snprintf(here, sizeof here, "/tmp");
    snprintf(folder, sizeof folder, "%s/syncguard-bench-XXXXXX", here);
    if (mkdtemp(folder) == NULL) {
        folder[0] = '\0';
        bench_die(here, "cannot make a folder in it");
    }
}

const char *bench_folder(void)
{
    return folder;
}
