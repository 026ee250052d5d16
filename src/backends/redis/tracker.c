/*
 * The state of client tracking.
 *
 * A connection that is to report runs CLIENT TRACKING with REDIRECT to the connection that notify.c
 * reads. OPTIN: only what follows CLIENT CACHING YES is tracked, so that uncontended requests cost
 * nothing. NOLOOP: changes that the same connection makes are not reported.
 */
#include "tracker.h"

#include <string.h>

#define MAX_REFUSALS 3

syncguard_status sg_redis_tracker_init(sg_redis_tracker *tracker, syncguard_error *err)
{
    memset(tracker, 0, sizeof *tracker);
    tracker->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    return pthread_mutex_init(&tracker->mutex, NULL) == 0 ? SYNCGUARD_OK
                                                          : syncguard_fail_memory(err);
}

void sg_redis_tracker_fini(sg_redis_tracker *tracker, bool forked)
{
    syncguard_parker_close(&tracker->parker);
    if (!forked)
        pthread_mutex_destroy(&tracker->mutex);
}

bool sg_redis_tracker_started(sg_redis_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    bool started = tracker->started;
    pthread_mutex_unlock(&tracker->mutex);
    return started;
}

bool sg_redis_tracker_prepare(sg_redis_tracker *tracker, sg_redis_connection *conn, bool *expected)
{
    *expected = false;
    pthread_mutex_lock(&tracker->mutex);
    if (tracker->ready && strcmp(tracker->peer, conn->peer) != 0) {
        memcpy(tracker->wanted, conn->peer, sizeof tracker->wanted);
        tracker->reconnect = true;
        tracker->ready = false;
        syncguard_parker_unpark(&tracker->parker);
    } else if (tracker->ready && conn->tracked != tracker->epoch) {
        sg_redis_text_command(&conn->unsent, 7);
        sg_redis_text_arg_str(&conn->unsent, "CLIENT");
        sg_redis_text_arg_str(&conn->unsent, "TRACKING");
        sg_redis_text_arg_str(&conn->unsent, "ON");
        sg_redis_text_arg_str(&conn->unsent, "REDIRECT");
        sg_redis_text_arg_int(&conn->unsent, tracker->client_id);
        sg_redis_text_arg_str(&conn->unsent, "OPTIN");
        sg_redis_text_arg_str(&conn->unsent, "NOLOOP");
        conn->tracked = tracker->epoch;
        *expected = true;
        syncguard_parker_unpark(&tracker->parker); /* one more connection to watch */
    }
    bool armed = tracker->ready && conn->tracked == tracker->epoch;
    pthread_mutex_unlock(&tracker->mutex);
    return armed;
}

void sg_redis_tracker_answer(sg_redis_tracker *tracker, uint64_t epoch, const redisReply *reply)
{
    char word[SG_REDIS_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    pthread_mutex_lock(&tracker->mutex);
    if (word[0] == '\0') {
        tracker->refusals = 0;
    } else if ((epoch == 0 || epoch == tracker->epoch) && !tracker->reconnect) {
        /* Perhaps only the redirection is out of date, and other connections get the same error at
         * the same time. But after several errors in a row, or NOPERM, tracking is turned
         * off. */
        memcpy(tracker->refusal, word, sizeof word);
        tracker->refusals++;
        if (strcmp(tracker->refusal, "NOPERM") == 0 || tracker->refusals >= MAX_REFUSALS)
            tracker->off = true;
        tracker->ready = false;
        tracker->reconnect = true;
        syncguard_parker_unpark(&tracker->parker);
    }
    pthread_mutex_unlock(&tracker->mutex);
}

void sg_redis_tracker_moving(sg_redis_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    if (!tracker->moving && tracker->started)
        syncguard_parker_unpark(&tracker->parker);
    tracker->moving = true;
    pthread_mutex_unlock(&tracker->mutex);
}

void sg_redis_tracker_distrust(sg_redis_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    if (tracker->ready) {
        tracker->ready = false;
        tracker->reconnect = true;
        syncguard_parker_unpark(&tracker->parker);
    }
    pthread_mutex_unlock(&tracker->mutex);
}

void sg_redis_tracker_lost(sg_redis_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    tracker->report_lost = true;
    if (tracker->started)
        syncguard_parker_unpark(&tracker->parker);
    pthread_mutex_unlock(&tracker->mutex);
}
