/* Notifications: reads what the tracked connections report, and tells waiters of releases. */
#ifndef SYNCGUARD_REDIS_NOTIFY_H
#define SYNCGUARD_REDIS_NOTIFY_H

#include "backend.h"

syncguard_status sg_redis_notifier_create(sg_redis_backend *backend, sg_redis_notifier **out,
                                          syncguard_error *err);
void sg_redis_notifier_free(sg_redis_notifier *notifier, bool forked);
/* Called before a waiter tries. True if the try should be armed. */
bool sg_redis_notifier_watch(sg_redis_notifier *notifier);

#endif
