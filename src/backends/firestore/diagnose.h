/* Findings for `doctor`. */
#ifndef SG_FIRESTORE_DIAGNOSE_H
#define SG_FIRESTORE_DIAGNOSE_H

#include "syncguard/sys/backend.h"

syncguard_status sg_firestore_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                       syncguard_finding_fn fn, void *context,
                                       syncguard_error *err);

#endif
