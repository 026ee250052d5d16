/*
 * Where credentials come from. Order: an emulator needs none; the token callback; the credentials
 * option; the file named by GOOGLE_APPLICATION_CREDENTIALS; gcloud's application default file; the
 * metadata server. Files are read once, at open. Immutable afterwards.
 */
#ifndef SG_FIRESTORE_CREDENTIALS_H
#define SG_FIRESTORE_CREDENTIALS_H

#include "syncguard/firestore.h"
#include "syncguard/sys/fail.h"

typedef enum sg_firestore_credentials_kind {
    SG_FIRESTORE_EMULATOR,
    SG_FIRESTORE_CALLBACK,
    SG_FIRESTORE_SERVICE_ACCOUNT,
    SG_FIRESTORE_USER,
    SG_FIRESTORE_METADATA
} sg_firestore_credentials_kind;

typedef struct sg_firestore_credentials {
    sg_firestore_credentials_kind kind;
    syncguard_firestore_token_fn callback;
    void *callback_context;
    char *token_uri;
    char *client; /* client_email or client_id */
    char *key_id;
    char *secret; /* private key (PEM), or client_secret */
    char *refresh_token;
} sg_firestore_credentials;

syncguard_status sg_firestore_credentials_read(sg_firestore_credentials *credentials,
                                               const syncguard_firestore_options *options,
                                               bool emulator, syncguard_error *err);
/* Wipes and frees. */
void sg_firestore_credentials_destroy(sg_firestore_credentials *credentials);

#endif
