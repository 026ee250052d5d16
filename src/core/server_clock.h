/*
 * The clock of the server, as replies show it: detects that it has jumped, because it was set or
 * because another server answers now.
 *
 * A reply shows the server's time at an unknown moment between sending and receiving. So it gives
 * bounds for how far that clock is ahead of the local monotonic clock, which cannot be set.
 *
 * Locking: the caller's.
 */
#ifndef SG_SERVER_CLOCK_H
#define SG_SERVER_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Larger than the effect of gradual adjustment, and of the imprecise bounds of replies. */
#define SG_CLOCK_JUMP_MS 500

/* Zero at first. */
typedef struct sg_server_clock {
    bool known;
    int64_t least_ms; /* bounds for how far it is ahead of the local clock */
    int64_t most_ms;
} sg_server_clock;

/* Notes the time in a reply. True if it contradicts the earlier ones by more than
 * SG_CLOCK_JUMP_MS. */
bool sg_server_clock_jumped(sg_server_clock *clock, int64_t sent_ns, int64_t received_ns,
                            int64_t server_ms);

#endif
