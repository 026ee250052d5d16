/*
 * The minimum hold: a lock that its holder releases early stays in the store until the minimum is
 * over. Its lease is set to the time left; the store checks ownership, as in any extend.
 */
#ifndef SG_MIN_HOLD_H
#define SG_MIN_HOLD_H

#include "syncguard/sys/backend.h"

/* The time left of a minimum hold that ends at keep_until_ns, at least 1; 0 if it is over. */
int64_t sg_min_hold_left_ms(int64_t keep_until_ns);
/* Sets the lease instead of releasing. The caller has filled in op's in fields; key is that of the
 * lock. Waiters of this handle learn the new expiry, even if the store reports nothing. */
syncguard_status sg_min_hold_keep(syncguard_backend *backend, syncguard_extend_op *op,
                                  const char *key, size_t key_length, syncguard_error *err);

#endif
