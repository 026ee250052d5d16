/* The signed assertion with which a service account asks for an access token. */
#ifndef SG_FIRESTORE_JWT_H
#define SG_FIRESTORE_JWT_H

#include "syncguard/sys/fail.h"

/* key_id may be NULL. Valid from now_s for one hour. The caller frees *out with
 * syncguard_free_secret. */
syncguard_status sg_firestore_jwt(const char *client_email, const char *key_id,
                                  const char *private_key, const char *audience, int64_t now_s,
                                  char **out, syncguard_error *err);

#endif
