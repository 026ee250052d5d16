/* See server_clock.h. */
#include "server_clock.h"

#include "syncguard/sys/wait.h"

/* The end of the year 9999. A later time is not valid, and could overflow. */
#define LATEST_MS INT64_C(253402300799999)

/* Bounds that agree with the earlier ones are combined with them: the wide bounds of a slow reply
 * alone would hide a jump. If they differ a little, the clock drifts, and the new ones count. */
bool sg_server_clock_jumped(sg_server_clock *clock, int64_t sent_ns, int64_t received_ns,
                            int64_t server_ms)
{
    if (server_ms < 0 || server_ms > LATEST_MS)
        return false;
    int64_t least = server_ms - received_ns / SYNCGUARD_NS_PER_MS - 1;
    int64_t most = server_ms - sent_ns / SYNCGUARD_NS_PER_MS + 1;
    bool jumped = clock->known && (least - clock->most_ms > SG_CLOCK_JUMP_MS ||
                                   clock->least_ms - most > SG_CLOCK_JUMP_MS);
    if (clock->known && least <= clock->most_ms && clock->least_ms <= most) {
        least = least > clock->least_ms ? least : clock->least_ms;
        most = most < clock->most_ms ? most : clock->most_ms;
    }
    *clock = (sg_server_clock){true, least, most};
    return jumped;
}
