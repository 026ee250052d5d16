/* URLs that come from the environment or a file: see syncguard/default_url.h. */
#ifndef SG_DEFAULT_URL_H
#define SG_DEFAULT_URL_H

#include "syncguard/default_url.h"

/* Like syncguard_default_url. *embedded: nothing is configured, and the URL names the embedded
 * file. */
syncguard_status sg_default_url(char *buffer, size_t size, bool *embedded, syncguard_error *err);

/* Makes the missing folders in the path of the embedded file, except for the last one. */
syncguard_status sg_default_folders(syncguard_error *err);

/* url_file.c. Like syncguard_url_from_file; if pipes is false, a pipe is refused at once. */
syncguard_status sg_url_file_read(const char *path, const syncguard_call *call, bool pipes,
                                  char *buffer, size_t size, syncguard_error *err);

#endif
