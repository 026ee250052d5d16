/*
 * The clock of the server, as replies show it: whether it has jumped, because it was set or because
 * another server answers now.
 *
 * A reply shows the server's time at an unknown moment between sending and receiving, so it bounds
 * by how much that clock is ahead of ours, which nobody can set.
 *
 * Locking: the caller's.
 */
#ifndef SG_SERVER_CLOCK_H
#define SG_SERVER_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Clocks that are adjusted gradually, and those that replies bound badly, are no jump. */
#define SG_CLOCK_JUMP_MS 500

/* Zero at first. */
typedef struct sg_server_clock {
    bool known;
    int64_t least_ms; /* by which it is ahead of ours */
    int64_t most_ms;
} sg_server_clock;

/* Notes the time in a reply. True if it contradicts the earlier ones by more than
 * SG_CLOCK_JUMP_MS. */
bool sg_server_clock_jumped(sg_server_clock *clock, int64_t sent_ns, int64_t received_ns,
                            int64_t server_ms);

#endif
