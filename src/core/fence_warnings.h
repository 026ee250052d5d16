/* The keys for which a warning was logged because their fence counter nears its end. */
#ifndef SG_FENCE_WARNINGS_H
#define SG_FENCE_WARNINGS_H

#include <pthread.h>

#include "syncguard/sys/backend.h"

typedef struct sg_fence_warnings {
    pthread_mutex_t mutex;
    struct sg_fence_warning *first;
    size_t count;
} sg_fence_warnings;

syncguard_status sg_fence_warnings_init(sg_fence_warnings *warnings, syncguard_error *err);
void sg_fence_warnings_destroy(sg_fence_warnings *warnings);
/* In a forked child: the mutex may be locked by a thread of the parent. */
void sg_fence_warnings_forget(sg_fence_warnings *warnings);
/* Logs a warning with the hash of key, at most once per key and minute, and for at most 1,024 keys
 * in a minute. */
void sg_fence_warnings_log(sg_fence_warnings *warnings, syncguard_backend *backend, const char *key,
                           size_t length);

#endif
