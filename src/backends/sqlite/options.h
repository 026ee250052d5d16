/* Reads a URL or syncguard_sqlite_options into a config. */
#ifndef SG_SQLITE_OPTIONS_H
#define SG_SQLITE_OPTIONS_H

#include "database_file.h"
#include "syncguard/sqlite.h"

typedef struct sg_sqlite_config {
    char path[SG_SQLITE_PATH_SIZE]; /* has at least one slash */
    bool durable;                   /* grants are synced before they are reported */
    mode_t mode;                    /* of a file that is created */
    syncguard_options common;
} sg_sqlite_config;

/* given may be NULL: then the path is missing, which is InvalidArgument. */
syncguard_status sg_sqlite_config_from_options(const syncguard_sqlite_options *given,
                                               const syncguard_options *common,
                                               sg_sqlite_config *out, syncguard_error *err);
syncguard_status sg_sqlite_config_from_url(const char *text, const syncguard_options *common,
                                           sg_sqlite_config *out, syncguard_error *err);

#endif
