/* What a backend reports to the core: see sys/backend.h. */
#ifndef SYNCGUARD_SYS_REPORT_H
#define SYNCGUARD_SYS_REPORT_H

#include "../backend.h"
#include "fail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Calls the log callback if there is one. No keys, lock ids, credentials. */
SYNCGUARD_API void syncguard_backend_log(const syncguard_backend *backend,
                                         syncguard_log_level level, const char *format, ...)
    SYNCGUARD_PRINTF(3, 4);

/*
 * The store reports that something happened to key: a waiter tries again. Call
 * it from any thread, with no lock held that an acquire might need. key in NFC.
 */
SYNCGUARD_API void syncguard_backend_key_changed(syncguard_backend *backend, const char *key,
                                                 size_t key_length);
/* The store can no longer report (its connection is gone): one waiter per key tries and so arms
 * again. */
SYNCGUARD_API void syncguard_backend_notifications_lost(syncguard_backend *backend);

/* For how many different keys acquires of this handle (and of its decorators) wait at present; all
 * slots of one acquire count as one. */
SYNCGUARD_API size_t syncguard_backend_waited_keys(const syncguard_backend *backend);

/* A connection that was given up (it broke, or a request on it got no answer in time) has been
 * replaced: counted by telemetry, and logged. With no mutex held. */
SYNCGUARD_API void syncguard_backend_reconnected(syncguard_backend *backend);

#ifdef __cplusplus
}
#endif

#endif
