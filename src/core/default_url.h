/* The default store: see syncguard_default_url. */
#ifndef SG_DEFAULT_URL_H
#define SG_DEFAULT_URL_H

#include "syncguard/error.h"

/* As syncguard_default_url; *embedded: nothing is configured, and the URL is that of the file. */
syncguard_status sg_default_url(char *buffer, size_t size, bool *embedded, syncguard_error *err);

/* Makes the folders that the path of the embedded file lacks, but for the last. */
syncguard_status sg_default_folders(syncguard_error *err);

#endif
