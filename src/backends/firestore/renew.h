/* Renewal of many locks in few requests. */
#ifndef SG_FIRESTORE_RENEW_H
#define SG_FIRESTORE_RENEW_H

#include "syncguard/sys/backend.h"

syncguard_status sg_firestore_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                          size_t count, const syncguard_limits *limits,
                                          syncguard_error *err);

#endif
