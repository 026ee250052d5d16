/*
 * Prints "struct field offset size" for the structs that the Python package declares again; a line
 * with the field "sizeof" gives a struct's size.
 */
#include <stdio.h>

#include <syncguard.h>

#define FIELD(type, field)                                                                         \
    printf("%s %s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define WHOLE(type) printf("%s sizeof 0 %zu\n", #type, sizeof(type))

static void layout_options_print(void)
{
    FIELD(syncguard_options, size);
    FIELD(syncguard_options, timeout_ms);
    FIELD(syncguard_options, dispose_timeout_ms);
    FIELD(syncguard_options, owner);
    FIELD(syncguard_options, cleanup_in_is_locked);
    FIELD(syncguard_options, log);
    FIELD(syncguard_options, log_context);
    FIELD(syncguard_options, on_release_error);
    FIELD(syncguard_options, on_release_error_context);
    FIELD(syncguard_options, hash_secret);
    WHOLE(syncguard_options);
    FIELD(syncguard_call, size);
    FIELD(syncguard_call, abort_object);
    FIELD(syncguard_call, timeout_ms);
    WHOLE(syncguard_call);
}

static void layout_lock_options_print(void)
{
    FIELD(syncguard_lock_options, size);
    FIELD(syncguard_lock_options, ttl_ms);
    FIELD(syncguard_lock_options, max_retries);
    FIELD(syncguard_lock_options, retry_delay_ms);
    FIELD(syncguard_lock_options, backoff);
    FIELD(syncguard_lock_options, jitter);
    FIELD(syncguard_lock_options, timeout_ms);
    FIELD(syncguard_lock_options, retry_unavailable);
    FIELD(syncguard_lock_options, auto_extend);
    FIELD(syncguard_lock_options, max_hold_ms);
    FIELD(syncguard_lock_options, abort_object);
    FIELD(syncguard_lock_options, on_lost);
    FIELD(syncguard_lock_options, on_lost_context);
    FIELD(syncguard_lock_options, on_wait);
    FIELD(syncguard_lock_options, on_wait_context);
    FIELD(syncguard_lock_options, on_release_error);
    FIELD(syncguard_lock_options, on_release_error_context);
    FIELD(syncguard_lock_options, min_hold_ms);
    FIELD(syncguard_lock_options, abort_on_lost);
    FIELD(syncguard_lock_options, slots);
    WHOLE(syncguard_lock_options);
}

static void layout_results_print(void)
{
    FIELD(syncguard_error, code);
    FIELD(syncguard_error, native);
    FIELD(syncguard_error, key_hash);
    FIELD(syncguard_error, message);
    WHOLE(syncguard_error);
    FIELD(syncguard_lock_info, key_hash);
    FIELD(syncguard_lock_info, lock_id_hash);
    FIELD(syncguard_lock_info, fence);
    FIELD(syncguard_lock_info, expires_at_ms);
    FIELD(syncguard_lock_info, acquired_at_ms);
    FIELD(syncguard_lock_info, now_ms);
    WHOLE(syncguard_lock_info);
    FIELD(syncguard_capabilities, backend);
    FIELD(syncguard_capabilities, supports_fencing);
    FIELD(syncguard_capabilities, time_authority);
    FIELD(syncguard_capabilities, wakes_waiters);
    FIELD(syncguard_capabilities, is_shared);
    FIELD(syncguard_capabilities, keeps_expired);
    FIELD(syncguard_capabilities, works_in_child);
    WHOLE(syncguard_capabilities);
}

static void layout_completion_print(void)
{
    FIELD(syncguard_completion, kind);
    FIELD(syncguard_completion, status);
    FIELD(syncguard_completion, request);
    FIELD(syncguard_completion, context);
    FIELD(syncguard_completion, lock);
    FIELD(syncguard_completion, lost);
    FIELD(syncguard_completion, expires_at_ms);
    FIELD(syncguard_completion, error);
    WHOLE(syncguard_completion);
}

static void layout_constants_print(void)
{
    FIELD(syncguard_constants, version);
    FIELD(syncguard_constants, max_key_bytes);
    FIELD(syncguard_constants, max_raw_key_bytes);
    FIELD(syncguard_constants, default_ttl_ms);
    FIELD(syncguard_constants, time_tolerance_ms);
    FIELD(syncguard_constants, default_timeout_ms);
    FIELD(syncguard_constants, max_time_ms);
    FIELD(syncguard_constants, fence_max);
    WHOLE(syncguard_constants);
}

int main(void)
{
    layout_options_print();
    layout_lock_options_print();
    layout_results_print();
    layout_completion_print();
    layout_constants_print();
    return 0;
}
