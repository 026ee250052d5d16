/* See options.h. */
#include "options.h"

#include <stdio.h>
#include <string.h>

#include "syncguard/sys/fail.h"
#include "syncguard/sys/options.h"
#include "syncguard/sys/url.h"

/* SQLite and notify.c give the files beside the database the same mode. */
#define MODE_OWNER 0600
#define MODE_GROUP 0660

/* "./" keeps ":memory:" and "file:" from having a meaning of their own to SQLite. */
static syncguard_status sqlite_options_set_path(const char *path, sg_sqlite_config *out,
                                                syncguard_error *err)
{
    if (path == NULL || path[0] == '\0')
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the path of the file is missing");
    size_t length = strlen(path);
    if (length + 3 > sizeof out->path)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the path is longer than %zu bytes", sizeof out->path - 3);
    if (path[length - 1] == '/')
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s: is the name of a folder, not of a file", path);
    snprintf(out->path, sizeof out->path, "%s%s", path[0] == '/' ? "" : "./", path);
    return SYNCGUARD_OK;
}

void syncguard_sqlite_options_init(syncguard_sqlite_options *options, size_t size)
{
    static const syncguard_sqlite_options defaults = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

syncguard_status sg_sqlite_config_from_options(const syncguard_sqlite_options *given,
                                               const syncguard_options *common,
                                               sg_sqlite_config *out, syncguard_error *err)
{
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_status status = syncguard_struct_read(
        given, &own, sizeof own, SYNCGUARD_SIZE_UP_TO(syncguard_sqlite_options, durability),
        "sqlite_options", err);
    if (status == SYNCGUARD_OK && own.durability != SYNCGUARD_SQLITE_FULL &&
        own.durability != SYNCGUARD_SQLITE_NORMAL)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "durability is neither full nor normal");
    if (status == SYNCGUARD_OK && own.mode != 0 && own.mode != MODE_OWNER && own.mode != MODE_GROUP)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "mode is neither 0600 nor 0660");
    if (status == SYNCGUARD_OK)
        status = syncguard_options_read(common, &out->common, err);
    out->durable = own.durability == SYNCGUARD_SQLITE_FULL;
    out->mode = own.mode == MODE_GROUP ? MODE_GROUP : MODE_OWNER;
    return status == SYNCGUARD_OK ? sqlite_options_set_path(own.path, out, err) : status;
}

static syncguard_status sqlite_options_read_url(syncguard_url *url, sg_sqlite_config *out,
                                                syncguard_error *err)
{
    static const char *const words[] = {"full", "normal", NULL};
    static const char *const modes[] = {"0600", "0660", NULL};
    int index = 0, mode = 0;
    if (url->user != NULL || url->password != NULL || (url->hosts != NULL && url->hosts[0] != '\0'))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the URL names a host; write sqlite:/path/to/file");
    syncguard_status status = syncguard_url_common(url, &out->common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_choice(url, "durability", words, &index, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_choice(url, "mode", modes, &mode, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    out->durable = index == 0;
    out->mode = mode == 0 ? MODE_OWNER : MODE_GROUP;
    return status == SYNCGUARD_OK ? sqlite_options_set_path(url->path, out, err) : status;
}

syncguard_status sg_sqlite_config_from_url(const char *text, const syncguard_options *common,
                                           sg_sqlite_config *out, syncguard_error *err)
{
    syncguard_url *url = NULL;
    syncguard_status status = syncguard_options_read(common, &out->common, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    if (status == SYNCGUARD_OK)
        status = sqlite_options_read_url(url, out, err);
    syncguard_url_free(url);
    return status;
}
