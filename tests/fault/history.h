/*
 * Histories: what many clients asked of a store and what they heard, with times
 * of one machine's boot clock. A client writes records; the checker reads them.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include <stdint.h>

typedef enum history_kind {
    HISTORY_ACQUIRE = 1,
    HISTORY_RELEASE = 2,
    HISTORY_EXTEND = 3,
    HISTORY_IS_LOCKED = 4,
    HISTORY_LOOKUP = 5, /* by key */
    HISTORY_WRITE = 6   /* to the fenced resource */
} history_kind;

typedef enum history_outcome {
    HISTORY_OK = 0,      /* acquired, released, extended, locked, found, written */
    HISTORY_NO = 1,      /* locked by another, absent, not locked, nothing found, refused */
    HISTORY_UNKNOWN = 2, /* failed, and may have happened or may still happen */
    HISTORY_FAILED = 3,  /* failed, and did not happen (reads; refused before sending) */
    HISTORY_PENDING = 4  /* written before a mutation is sent: all there is if the client dies */
} history_outcome;

/* One operation; fixed size, so that a file cut short by kill -9 still reads. */
typedef struct history_record {
    uint32_t kind;
    uint32_t outcome;
    uint32_t key;
    uint32_t thread; /* unique among all clients */
    int64_t call_ns;
    int64_t return_ns;
    int64_t ttl_ms;
    int64_t fence;
    char lock_id[24];
    int32_t status; /* the syncguard_status behind the outcome */
    uint32_t mark;  /* HISTORY_MARK: the record was written whole */
} history_record;

#define HISTORY_MARK UINT32_C(0x53474831)

#endif
