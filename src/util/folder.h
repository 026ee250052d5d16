/* Folders of the file system. */
#ifndef SG_UTIL_FOLDER_H
#define SG_UTIL_FOLDER_H

#include "syncguard/error.h"

bool sg_folder_exists(const char *path);
/* Makes what is missing of path from its byte `from` on, for the user alone. path is the same
 * afterwards. */
syncguard_status sg_folders_make(char *path, size_t from, syncguard_error *err);

#endif
