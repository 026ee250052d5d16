/*
 * Decides whether an operation is done by its script or, because the hash slot of a Cluster is
 * split between two nodes, by its split handler (cluster.c). The reply to the script tells, so
 * nothing is asked first: where no hash slot moves, an operation is one round trip.
 *
 *   script    Every operation sends it first. A script with several names has an effect only on a
 *             node that has all of them. It is never sent with ASKING, because the new node answers
 *             for names that are still on the old node as if they did not exist. A script with one
 *             name follows ASK in request.c, so it is never split.
 *   handler   It runs if and only if the last reply to the script was that the hash slot is split
 *             (ASK, TRYAGAIN, or a name that the script could not reach); that sending had no
 *             effect. An operation without a handler fails then.
 *   retries   request.c sends each request again. The handler is not repeated, and does not return
 *             to the script if the move ends meanwhile, because its requests are correct at any
 *             time. An earlier sending of the script that was not answered may still have had its
 *             effect, so `sent_again` and `unanswered` keep their values.
 *   lease     It begins with the first sending of all, of the script or of the handler:
 *             `first_sent_ns` keeps its value, too.
 *   fence     It counts only if it is in the last reply, whose form is that of the script's reply.
 *             A lock that the handler has taken but not granted yet has fence 0.
 *   waiters   A try by a handler is not armed: its waiter polls until the hash slot has moved.
 */
#include "dispatch.h"

syncguard_status sg_redis_dispatch(sg_redis_request *request, sg_redis_split_handler *handler,
                                   void *op, syncguard_error *err)
{
    syncguard_status status = sg_redis_request_run(request, err);
    if (request->hash_slot == SG_REDIS_HASH_SLOT_SPLIT) {
        status = handler != NULL ? handler(request, op, err) : sg_redis_fail_moving(err);
        request->armed = false;
    }
    if (request->watch != NULL && request->hash_slot == SG_REDIS_HASH_SLOT_IMPORTING)
        sg_redis_tracker_moving(&request->backend->tracker); /* nothing is armed */
    return status;
}
