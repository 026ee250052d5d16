/* How far this machine's wall clock is from the server's clock, measured by the server's
 * answers. */
#ifndef SG_FIRESTORE_CLOCK_H
#define SG_FIRESTORE_CLOCK_H

#include "syncguard/firestore.h"
#include "syncguard/sys/backend.h"

typedef struct sg_firestore_clock {
    const syncguard_backend *backend; /* for the log */
    int64_t max_drift_ms;             /* 0: nothing is refused */
    pthread_mutex_t mutex;            /* guards what follows */
    uint64_t samples;
    int64_t base_ns;   /* server's time since 1970 less our boot clock */
    int64_t error_ns;  /* at taken_ns */
    int64_t taken_ns;  /* boot clock */
    int64_t logged_ns; /* 0: never */
    int64_t asked_ns;  /* likewise */
} sg_firestore_clock;

/* Both clocks, read together. A decision and its check use the same reading: the wall clock may
 * have been set since. */
typedef struct sg_firestore_instant {
    int64_t boot_ns; /* just before the wall clock was read */
    int64_t span_ns; /* duration of the reading */
    int64_t wall_ns;
    int64_t wall_ms;
} sg_firestore_instant;

typedef enum sg_firestore_clock_use {
    SG_FIRESTORE_LIVENESS, /* another holder's lock is dead: no wrong clock may decide that */
    SG_FIRESTORE_EXPIRY    /* of our own lock: a clock that is behind makes it too early */
} sg_firestore_clock_use;

sg_firestore_instant sg_firestore_now(void);
syncguard_status sg_firestore_clock_init(sg_firestore_clock *clock,
                                         const syncguard_backend *backend, int64_t max_drift_ms,
                                         syncguard_error *err);
void sg_firestore_clock_destroy(sg_firestore_clock *clock);
/* The server's time was server_ns (since 1970), give or take slack_ns, between two boot times. */
void sg_firestore_clock_sample(sg_firestore_clock *clock, int64_t server_ns, int64_t slack_ns,
                               int64_t start_ns, int64_t end_ns);
/* The offset of the wall clock at that instant. False before the first sample. */
bool sg_firestore_clock_read(sg_firestore_clock *clock, const sg_firestore_instant *at,
                             syncguard_firestore_clock_info *info);
/* |offset| less its error bound, in microseconds; never negative. */
int64_t sg_firestore_clock_certain_us(const syncguard_firestore_clock_info *info);
/* ServiceUnavailable if the clock was certainly off by max_drift_ms or more at that instant. Logs a
 * warning at most once a minute. */
syncguard_status sg_firestore_clock_check(sg_firestore_clock *clock, sg_firestore_clock_use use,
                                          const sg_firestore_instant *at, syncguard_error *err);
/* Whether a request may be spent on a sample: not more often than the heartbeat tries again. */
bool sg_firestore_clock_may_ask(sg_firestore_clock *clock);
/* RFC 3339 to nanoseconds since 1970. */
bool sg_firestore_time_parse(const char *text, int64_t *ns);

#endif
