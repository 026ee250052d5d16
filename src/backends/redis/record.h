/* The stored lock: a JSON object. */
#ifndef SYNCGUARD_REDIS_RECORD_H
#define SYNCGUARD_REDIS_RECORD_H

#include "syncguard/sys/backend.h"
#include "text.h"

/* What can be read of a stored lock. */
typedef enum sg_redis_legibility {
    SG_REDIS_UNREADABLE, /* not even the expiry: whether the lock is live is unknown */
    SG_REDIS_DAMAGED,    /* the expiry, but not all of lock id, key and fence: those are "" then */
    SG_REDIS_WHOLE
} sg_redis_legibility;
sg_redis_legibility sg_redis_record_read(const char *text, size_t length, syncguard_record *record);
/* Appends a JSON string with its quotes. */
void sg_redis_record_quote(sg_redis_text *out, const char *text, size_t length);
/* Appends what follows the fence in the stored value, which does not depend on time, as an argument
 * of a command. */
void sg_redis_record_add_rest(sg_redis_text *args, const syncguard_acquire_op *op);

#endif
