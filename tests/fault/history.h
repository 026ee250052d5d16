/*
 * Histories: what many clients asked of a store and which answers they got, with times of one
 * machine's boot clock. A client writes records; the checker reads them.
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
    HISTORY_WRITE = 6,  /* to the fenced resource */
    HISTORY_HELD = 7,   /* OK: the holder believes that it holds the lock; NO: it does not */
    HISTORY_LOST = 8,   /* on_lost was called; status is the reason */
    HISTORY_CHILD = 9   /* a child of `syncguard run` is alive */
} history_kind;

typedef enum history_outcome {
    HISTORY_OK = 0,      /* acquired, released, extended, locked, found, written */
    HISTORY_NO = 1,      /* locked by another, absent, not locked, nothing found, refused */
    HISTORY_UNKNOWN = 2, /* failed, and may have happened or may still happen */
    HISTORY_FAILED = 3,  /* failed, and did not happen (reads; refused before sending) */
    HISTORY_PENDING = 4  /* written before a mutation is sent: all there is if the client dies */
} history_outcome;

/* Flags of an acquire. */
#define HISTORY_HELPER UINT32_C(1)  /* made by the lock helper, which waits */
#define HISTORY_RENEWED UINT32_C(2) /* the lock is renewed in the background until its end */
#define HISTORY_COMMAND UINT32_C(4) /* made by `syncguard run` */
#define HISTORY_RETRIES UINT32_C(8) /* it tries again, with another id, when an attempt fails */

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
    int64_t sent_ns; /* helper: the request that was granted was not sent before this time;
                        otherwise 0 (HELD: the end of the lease) */
    char lock_id[24];
    int32_t status; /* the syncguard_status of the outcome */
    uint32_t flags;
    uint32_t wait_ms; /* helper: for how long an acquire would have waited */
    uint32_t mark;    /* HISTORY_MARK: the record was written whole */
} history_record;

#define HISTORY_MARK UINT32_C(0x53474832)

/* ---- writing (record.c) ---- */

/* A new record, beginning now. */
history_record history_begin(history_kind kind, uint32_t key, uint32_t thread);
/* Appends; the file is opened with O_APPEND, which keeps the records of all threads whole. */
void history_put(int fd, history_record *r);
/* Sets the time of return and appends. */
void history_finish(int fd, history_record *r, int status, history_outcome outcome);

/* The resource keeps, per key, the highest fence it has seen, and refuses lower ones. */
void history_write_resource(int fd, int resource, uint32_t thread, uint32_t key, int64_t fence);

/* A small generator of random numbers: one per thread. */
uint32_t history_draw(uint64_t *state, uint32_t below);

#endif
