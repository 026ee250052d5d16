/* What a backend reports to the core: see sys/backend.h. */
#ifndef SYNCGUARD_SYS_REPORT_H
#define SYNCGUARD_SYS_REPORT_H

#include "../backend.h"
#include "fail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Calls the log callback if there is one. The text must not contain keys, ids or credentials. */
SYNCGUARD_API void syncguard_backend_log(const syncguard_backend *backend,
                                         syncguard_log_level level, const char *format, ...)
    SYNCGUARD_PRINTF(3, 4);

/*
 * The store reports that the key has changed: a waiter tries again. May be called from any
 * thread that holds no mutex that an acquire may need. key is in NFC.
 */
SYNCGUARD_API void syncguard_backend_key_changed(syncguard_backend *backend, const char *key,
                                                 size_t key_length);
/* The store can no longer report changes (the connection is lost): one waiter per key tries again,
 * which also arms the notification again. */
SYNCGUARD_API void syncguard_backend_notifications_lost(syncguard_backend *backend);

/* The number of different keys for which acquires of this handle and its decorators wait now; all
 * slots of one acquire count as one key. */
SYNCGUARD_API size_t syncguard_backend_waited_keys(const syncguard_backend *backend);

/* A connection was replaced because it broke or because a request on it got no answer in time. The
 * core counts and logs this, and if the server's clock counts, it renews all locks that are to be
 * renewed, because the server may be another one. Call it with no mutex held. */
SYNCGUARD_API void syncguard_backend_reconnected(syncguard_backend *backend);

#ifdef __cplusplus
}
#endif

#endif
