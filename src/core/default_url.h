/* The default store: see syncguard_default_url. */
#ifndef SG_DEFAULT_URL_H
#define SG_DEFAULT_URL_H

#include "syncguard/error.h"

/* Like syncguard_default_url. *embedded: nothing is configured, and the URL names the embedded
 * file. */
syncguard_status sg_default_url(char *buffer, size_t size, bool *embedded, syncguard_error *err);

/* Makes the missing folders in the path of the embedded file, except for the last one. */
syncguard_status sg_default_folders(syncguard_error *err);

#endif
