/* See min_hold.h. */
#include "min_hold.h"

#include "core.h"

int64_t sg_min_hold_left_ms(int64_t keep_until_ns)
{
    int64_t left = keep_until_ns - syncguard_clock_ns();
    return left > 0 ? (left - 1) / SYNCGUARD_NS_PER_MS + 1 : 0;
}

syncguard_status sg_min_hold_keep(syncguard_backend *backend, syncguard_extend_op *op,
                                  const char *key, size_t key_length, syncguard_error *err)
{
    op->first_sent_ns = syncguard_clock_ns();
    syncguard_status status = backend->ops->extend(backend, op, err);
    if (status >= SYNCGUARD_OK)
        syncguard_error_clear(err);
    if (status == SYNCGUARD_OK)
        sg_wait_queue_set_expiry(backend->core->wait_queue, key, key_length,
                                 op->ttl_ms + SYNCGUARD_TIME_TOLERANCE_MS);
    return status;
}
