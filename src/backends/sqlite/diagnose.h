/* Findings for `syncguard doctor`. Contract: syncguard/sys/backend.h. */
#ifndef SG_SQLITE_DIAGNOSE_H
#define SG_SQLITE_DIAGNOSE_H

#include "syncguard/sys/backend.h"

syncguard_status sg_sqlite_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                    syncguard_finding_fn fn, void *context, syncguard_error *err);

#endif
