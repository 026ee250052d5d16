/*
 * Incidents: a lost lock, a renewal that failed or was slow, a connection that was replaced. Each
 * is counted (counters.h) and logged.
 *
 * Lines contain no key and no lock id; a lost lock is named by the hash of its key. Each kind has
 * at most SG_INCIDENT_LINES lines per minute, so that a store that fails cannot flood the log; the
 * next line says how many were left out.
 */
#ifndef SG_INCIDENTS_H
#define SG_INCIDENTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "syncguard/lock.h"
#include "syncguard/sys/backend.h"

#define SG_INCIDENT_LINES 10
#define SG_INCIDENT_MINUTE_NS (60000 * SYNCGUARD_NS_PER_MS)
/* Slower renewals are logged even if they succeed. */
#define SG_SLOW_RENEWAL_NS (1000 * SYNCGUARD_NS_PER_MS)
/* Most losses that wait to be logged; further ones are only counted as left out. */
#define SG_INCIDENT_LOSSES 16

typedef enum sg_incident_kind {
    SG_INCIDENT_LOST,
    SG_INCIDENT_RENEWAL,
    SG_INCIDENT_RECONNECT,
    SG_INCIDENT_KINDS
} sg_incident_kind;

typedef struct sg_log_limit {
    int64_t minute_ends_ns;
    unsigned lines; /* in this minute */
    uint64_t left_out;
} sg_log_limit;

typedef struct sg_loss {
    syncguard_lost_reason reason;
    char key_hash[SYNCGUARD_HASH_SIZE];
} sg_loss;

typedef struct sg_incidents {
    pthread_mutex_t mutex; /* innermost: nothing is called with it held */
    sg_log_limit limits[SG_INCIDENT_KINDS];
    sg_loss losses[SG_INCIDENT_LOSSES];
    atomic_size_t loss_count;
} sg_incidents;

syncguard_status sg_incidents_init(sg_incidents *incidents, syncguard_error *err);
void sg_incidents_destroy(sg_incidents *incidents);
/* In a forked child: the mutex may be locked by a thread of the parent. */
void sg_incidents_forget(sg_incidents *incidents);

/* A lock of key was lost just now. The caller may hold any mutex: sg_incidents_log_losses logs the
 * loss. */
void sg_incidents_lost(syncguard_backend *backend, const char *key, size_t length,
                       syncguard_lost_reason reason);
/* Logs losses that have not been logged yet. The caller holds no mutex. */
void sg_incidents_log_losses(syncguard_backend *backend);
/* A request of the heartbeat is over; error is that of a request that failed as a whole. The caller
 * holds no mutex. */
void sg_incidents_renewed(syncguard_backend *backend, const syncguard_extend_op *items,
                          size_t count, int64_t begun_ns, const syncguard_error *error);
/* A connection was replaced. The caller holds no mutex. */
void sg_incidents_reconnected(syncguard_backend *backend);

#endif
