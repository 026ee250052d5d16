/* Reading a URL from a file: see syncguard_url_from_file. */
#ifndef SG_URL_FILE_H
#define SG_URL_FILE_H

#include "syncguard/default_url.h"

/* Like syncguard_url_from_file; if pipes is false, a pipe is refused at once. */
syncguard_status sg_url_file_read(const char *path, const syncguard_call *call, bool pipes,
                                  char *buffer, size_t size, syncguard_error *err);

#endif
