/* The store for callers that name none: the configured one, else an embedded file. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/default_url.h"
#include "syncguard/sys/cancel.h"
#include "syncguard/sys/environment.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/url.h"

#define ROOT_FILE "/var/lib/syncguard/locks.db"
#define SYSTEM_FILE "/etc/syncguard/url"

/* Builds a text in the caller's buffer; once a part does not fit, nothing more is added. */
typedef struct writer {
    char *at;
    size_t left;
    bool full;
} writer;

static void default_url_put_text(writer *w, const char *text)
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

/* Escapes the characters that have a special meaning in a URL. */
static void default_url_put_escaped(writer *w, const char *path)
{
    static const char digits[] = "0123456789ABCDEF";
    char piece[4] = "";
    for (; *path != 0; path++) {
        unsigned char byte = (unsigned char)*path;
        if (byte < 0x20 || byte == 0x7F || strchr("%?#@", byte) != NULL) {
            piece[0] = '%';
            piece[1] = digits[byte >> 4];
            piece[2] = digits[byte & 15];
            piece[3] = '\0';
        } else {
            piece[0] = (char)byte;
            piece[1] = '\0';
        }
        default_url_put_text(w, piece);
    }
}

static const char *default_url_env_folder(const char *name)
{
    const char *value = syncguard_environment(name);

    /* A relative path would mean another file in every working directory. Several leading slashes
     * become one: two would begin the hosts of a URL. */
    while (value != NULL && value[0] == '/' && value[1] == '/')
        value++;
    return value != NULL && value[0] == '/' ? value : NULL;
}

/*
 * The user database is not read when HOME is missing: it may ask a server on the
 * network, and nothing here could limit the time of that.
 */
static bool default_url_put_user_db(writer *w)
{
    const char *state = default_url_env_folder("XDG_STATE_HOME");
    const char *home = default_url_env_folder("HOME");
    if (state == NULL && home == NULL)
        return false;
    const char *below = state != NULL ? state : home;
    if (strcmp(below, "/") != 0) /* the rest begins with a slash */
        default_url_put_escaped(w, below);
    if (state == NULL)
        default_url_put_text(w, "/.local/state");
    default_url_put_text(w, "/syncguard/locks.db");
    return true;
}

/* ---- configured ---- */

static syncguard_status default_url_put_from_file(writer *w, const char *path, bool pipes,
                                                  syncguard_error *err)
{
    char line[SYNCGUARD_URL_MAX_BYTES + 1];
    syncguard_status status = sg_url_file_read(path, NULL, pipes, line, sizeof line, err);
    if (status == SYNCGUARD_OK)
        default_url_put_text(w, line);
    explicit_bzero(line, sizeof line); /* it may hold a password */
    return status;
}

static syncguard_status default_url_put_from_env(writer *w, const char *given, syncguard_error *err)
{
    if (*given == '\0')
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "SYNCGUARD_URL is empty; unset it for the default store ('syncguard "
                              "run' empties one with a password unless --export-url is given)");
    if (*given != '@') {
        default_url_put_text(w, given);
        return SYNCGUARD_OK;
    }
    syncguard_status status = default_url_put_from_file(w, given + 1, true, err);
    if (status == SYNCGUARD_ABSENT)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "SYNCGUARD_URL names the file %s, which does not exist", given + 1);
    return status;
}

/* Reads the environment, else the user's file, else the machine's file. ABSENT: nothing is
 * configured. A file that exists but cannot be used is an error: locks in another store would
 * exclude nobody. */
static syncguard_status default_url_put_configured(writer *w, syncguard_error *err)
{
    const char *given = syncguard_privileged() ? NULL : getenv("SYNCGUARD_URL");
    const char *config = default_url_env_folder("XDG_CONFIG_HOME");
    const char *home = default_url_env_folder("HOME");
    if (given != NULL)
        return default_url_put_from_env(w, given, err);
    char path[PATH_MAX];
    syncguard_status status = SYNCGUARD_ABSENT;
    if (config != NULL || home != NULL) {
        int length = snprintf(path, sizeof path, "%s%s/syncguard/url",
                              config != NULL ? config : home, config != NULL ? "" : "/.config");
        if (length > 0 && (size_t)length < sizeof path)
            status = default_url_put_from_file(w, path, false, err);
    }
    return status == SYNCGUARD_ABSENT ? default_url_put_from_file(w, SYSTEM_FILE, false, err)
                                      : status;
}

/* ---- default URL ---- */

static syncguard_status default_url_put_embedded(writer *w, syncguard_error *err)
{
    if (geteuid() == 0) {
        default_url_put_text(w, "sqlite:" ROOT_FILE);
        return SYNCGUARD_OK;
    }
    default_url_put_text(w, "sqlite:");
    if (default_url_put_user_db(w))
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "no place for the lock file: SYNCGUARD_URL is not set, and "
                          "neither XDG_STATE_HOME nor HOME is an absolute path");
}

syncguard_status sg_default_url(char *buffer, size_t size, bool *embedded, syncguard_error *err)
{
    writer w = {buffer, size, false};
    syncguard_error_clear(err);
    if (buffer == NULL || size == 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "no buffer for the URL");
    buffer[0] = '\0';
    syncguard_status status = default_url_put_configured(&w, err);
    *embedded = status == SYNCGUARD_ABSENT;
    if (*embedded)
        status = default_url_put_embedded(&w, err);
    if (status == SYNCGUARD_OK && w.full)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "the default URL does not fit into the buffer");
    if (status != SYNCGUARD_OK)
        buffer[0] = '\0';
    return status;
}

syncguard_status syncguard_default_url(char *buffer, size_t size, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    bool embedded = false;
    return sg_default_url(buffer, size, &embedded, err);
}

/* ---- its folders ---- */

static bool folder_exists(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

/* Creates the missing folders of path, beginning at its byte `from`, for this user alone. Cuts path
 * behind the folder that could not be created. */
static syncguard_status folder_make_all(char *path, size_t from, syncguard_error *err)
{
    char *end = path + from;
    while (*end != '\0') {
        end += 1 + strcspn(end + 1, "/");
        char next = *end;
        *end = '\0';
        if (!folder_exists(path) && mkdir(path, 0700) != 0 && errno != EEXIST) {
            int error = errno;
            bool refused = error == EACCES || error == EPERM;
            return syncguard_fail(
                err, refused ? SYNCGUARD_E_AUTH_FAILED : SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                "%s: the folder cannot be created: %s", path, syncguard_errno_text(error));
        }
        *end = next;
    }
    return SYNCGUARD_OK;
}

/*
 * A new account has no ~/.local yet. The user did not choose that path, so the
 * library makes it. It does not make a missing home directory, which is probably
 * not mounted or not set correctly. The backend makes the last folder.
 */
syncguard_status sg_default_folders(syncguard_error *err)
{
    const char *state = default_url_env_folder("XDG_STATE_HOME");
    const char *home = default_url_env_folder("HOME");
    if (geteuid() == 0 || (state == NULL && home == NULL))
        return SYNCGUARD_OK;
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s%s", state != NULL ? state : home,
                          state != NULL ? "" : "/.local/state");
    if (length < 0 || (size_t)length >= sizeof path || folder_exists(path))
        return SYNCGUARD_OK; /* the backend reports a path that is too long */
    return folder_make_all(path, state != NULL ? 0 : strlen(home), err);
}
