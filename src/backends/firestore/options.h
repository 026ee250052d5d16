/* Reads a URL and options into a configuration. Everything is checked, and nothing is sent. */
#ifndef SG_FIRESTORE_OPTIONS_H
#define SG_FIRESTORE_OPTIONS_H

#include "syncguard/firestore.h"
#include "syncguard/sys/url.h"

#define SG_FIRESTORE_BASE_URL_SIZE 512

typedef struct sg_firestore_config {
    syncguard_firestore_options options; /* strings belong to the caller */
    syncguard_options common;
    char base_url[SG_FIRESTORE_BASE_URL_SIZE]; /* without a trailing slash */
    bool emulator;
    bool tls;
} sg_firestore_config;

/* Reads and checks typed options; both may be NULL. */
syncguard_status sg_firestore_config_read(sg_firestore_config *config,
                                          const syncguard_firestore_options *options,
                                          const syncguard_options *common, syncguard_error *err);
/* Reads a parsed URL into typed options, whose strings then belong to url. */
syncguard_status sg_firestore_url_read(syncguard_url *url, syncguard_firestore_options *options,
                                       syncguard_options *common, syncguard_error *err);

#endif
