/* Where locks go when nobody says, and the folders on the way there. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"
#include "syncguard/backend.h"
#include "syncguard/sys/environment.h"
#include "syncguard/sys/fail.h"

#define ROOT_FILE "/var/lib/syncguard/locks.db"

/* Text that is put together in the caller's buffer; once it does not fit nothing more is added. */
typedef struct writer {
    char *at;
    size_t left;
    bool full;
} writer;

static void put(writer *w, const char *text)
{
    size_t length = strlen(text);

    if (w->full || length >= w->left) {
        w->full = true;
        return;
    }
    memcpy(w->at, text, length + 1);
    w->at += length;
    w->left -= length;
}

/* Escapes what the reader of URLs would take for something else. */
static void put_path(writer *w, const char *path)
{
    static const char digits[] = "0123456789ABCDEF";
    char piece[4] = "";

    for (; *path; path++) {
        unsigned char byte = (unsigned char)*path;

        if (byte < 0x20 || byte == 0x7F || strchr("%?#@", byte)) {
            piece[0] = '%';
            piece[1] = digits[byte >> 4];
            piece[2] = digits[byte & 15];
            piece[3] = '\0';
        } else {
            piece[0] = (char)byte;
            piece[1] = '\0';
        }
        put(w, piece);
    }
}

static const char *folder(const char *name)
{
    const char *value = syncguard_environment(name);

    /* A relative one would mean another file in every working directory. Of several slashes one is
     * left: two would begin the hosts of a URL. */
    while (value && value[0] == '/' && value[1] == '/')
        value++;
    return value && value[0] == '/' ? value : NULL;
}

/*
 * No look into the user database when HOME is missing: it may ask a server on
 * the network, which nothing here could bound.
 */
static bool put_user_file(writer *w)
{
    const char *state = folder("XDG_STATE_HOME");
    const char *home = folder("HOME");

    if (!state && !home)
        return false;
    const char *below = state ? state : home;
    if (strcmp(below, "/") != 0) /* what follows begins with a slash */
        put_path(w, below);
    if (!state)
        put(w, "/.local/state");
    put(w, "/syncguard/locks.db");
    return true;
}

syncguard_status syncguard_default_url(char *buffer, size_t size, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    const char *given = syncguard_environment("SYNCGUARD_URL");
    writer w = {buffer, size, false};

    syncguard_error_clear(err);
    if (!buffer || size == 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "no buffer for the URL");
    buffer[0] = '\0';
    if (given) {
        put(&w, given);
    } else if (geteuid() == 0) {
        put(&w, "sqlite:" ROOT_FILE);
    } else {
        put(&w, "sqlite:");
        if (!put_user_file(&w)) {
            buffer[0] = '\0';
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "no place for the lock file: SYNCGUARD_URL is not set, and "
                                  "neither XDG_STATE_HOME nor HOME is an absolute path");
        }
    }
    if (!w.full)
        return SYNCGUARD_OK;
    buffer[0] = '\0';
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the default URL does not fit into the buffer");
}

static bool is_there(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0;
}

/* Makes what is missing of path from its byte `from` on, for the user alone. */
static syncguard_status make_folders(char *path, size_t from, syncguard_error *err)
{
    char *end = path + from;

    while (*end != '\0') {
        end += 1 + strcspn(end + 1, "/");
        char next = *end;

        *end = '\0';
        if (!is_there(path) && mkdir(path, 0700) != 0 && errno != EEXIST) {
            int error = errno;

            return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                  "%s: the folder cannot be made (errno %d)", path, error);
        }
        *end = next;
    }
    return SYNCGUARD_OK;
}

/*
 * A fresh account has no ~/.local yet; nobody chose that path, so nobody can be
 * asked to make it. A home that is missing itself is another matter: somebody
 * forgot to mount or to set it. The last folder is left to the backend.
 */
syncguard_status sg_default_folders(syncguard_error *err)
{
    const char *state = folder("XDG_STATE_HOME");
    const char *home = folder("HOME");
    char path[PATH_MAX];

    if (syncguard_environment("SYNCGUARD_URL") || geteuid() == 0 || (!state && !home))
        return SYNCGUARD_OK;
    int length =
        snprintf(path, sizeof path, "%s%s", state ? state : home, state ? "" : "/.local/state");
    if (length < 0 || (size_t)length >= sizeof path || is_there(path))
        return SYNCGUARD_OK; /* too long: the backend says so */
    return make_folders(path, state ? 0 : strlen(home), err);
}
