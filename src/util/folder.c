/* See folder.h. */
#include "util/folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "syncguard/sys/fail.h"

bool sg_folder_exists(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

syncguard_status sg_folders_make(char *path, size_t from, syncguard_error *err)
{
    char *end = path + from;
    while (*end != '\0') {
        end += 1 + strcspn(end + 1, "/");
        char next = *end;
        *end = '\0';
        if (!sg_folder_exists(path) && mkdir(path, 0700) != 0 && errno != EEXIST) {
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
