/* The only place with the liveness rule, and the only one that computes an expiry. */
#include "core/liveness.h"

#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"

bool sg_is_live_within(int64_t expires_at_ms, int64_t now_ms, int64_t tolerance_ms)
{
    /* Here the threshold would be below every int64_t. */
    if (now_ms < INT64_MIN + tolerance_ms)
        return true;
    return expires_at_ms > now_ms - tolerance_ms;
}

bool syncguard_is_live(int64_t expires_at_ms, int64_t now_ms)
{
    return sg_is_live_within(expires_at_ms, now_ms, SYNCGUARD_TIME_TOLERANCE_MS);
}

int64_t syncguard_remaining_ms(int64_t expires_at_ms, int64_t now_ms)
{
    return expires_at_ms + SYNCGUARD_TIME_TOLERANCE_MS - now_ms;
}

syncguard_status syncguard_expiry(int64_t now_ms, int64_t ttl_ms, int64_t *expires_at_ms,
                                  syncguard_error *err)
{
    int64_t left = now_ms > 0 ? SYNCGUARD_MAX_TIME_MS - now_ms : SYNCGUARD_MAX_TIME_MS;
    if (ttl_ms <= 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "the ttl must be positive");
    if (ttl_ms > left)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the ttl is too large: the expiry would pass 2^53-1 ms");
    *expires_at_ms = now_ms + ttl_ms;
    return SYNCGUARD_OK;
}
