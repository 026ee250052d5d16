/* Folders of the file system. */
#ifndef SG_UTIL_FOLDER_H
#define SG_UTIL_FOLDER_H

#include "syncguard/error.h"

bool sg_folder_exists(const char *path);
/* Creates the missing folders of path, beginning at its byte `from`, for this user alone (mode
 * 0700). path is unchanged if this succeeds, and cut behind the folder that could not be created if
 * it fails. */
syncguard_status sg_folders_make(char *path, size_t from, syncguard_error *err);

#endif
