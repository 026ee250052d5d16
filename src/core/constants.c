/* The constants as this library was compiled with them. */
#include "syncguard/types.h"

const syncguard_constants *syncguard_constants_get(void)
{
    static const syncguard_constants constants = {
        .version = SYNCGUARD_VERSION_STRING,
        .max_key_bytes = SYNCGUARD_MAX_KEY_BYTES,
        .max_raw_key_bytes = SYNCGUARD_MAX_RAW_KEY_BYTES,
        .default_ttl_ms = SYNCGUARD_DEFAULT_TTL_MS,
        .time_tolerance_ms = SYNCGUARD_TIME_TOLERANCE_MS,
        .default_timeout_ms = SYNCGUARD_DEFAULT_TIMEOUT_MS,
        .max_time_ms = SYNCGUARD_MAX_TIME_MS,
        .fence_max = SYNCGUARD_FENCE_MAX,
        .fence_warn = SYNCGUARD_FENCE_WARN,
        .redis_limit_bytes = SYNCGUARD_REDIS_LIMIT_BYTES,
        .redis_reserve_bytes = SYNCGUARD_REDIS_RESERVE_BYTES,
        .postgres_limit_bytes = SYNCGUARD_POSTGRES_LIMIT_BYTES,
        .postgres_reserve_bytes = SYNCGUARD_POSTGRES_RESERVE_BYTES,
        .firestore_limit_bytes = SYNCGUARD_FIRESTORE_LIMIT_BYTES,
        .firestore_reserve_bytes = SYNCGUARD_FIRESTORE_RESERVE_BYTES,
        .sqlite_limit_bytes = SYNCGUARD_SQLITE_LIMIT_BYTES,
        .sqlite_reserve_bytes = SYNCGUARD_SQLITE_RESERVE_BYTES,
    };
    return &constants;
}
