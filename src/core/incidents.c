/* See incidents.h. */
#include "incidents.h"

#include <stdio.h>
#include <string.h>

#include "core.h"
#include "hash.h"
#include "text.h"

syncguard_status sg_incidents_init(sg_incidents *incidents, syncguard_error *err)
{
    return pthread_mutex_init(&incidents->mutex, NULL) == 0 ? SYNCGUARD_OK
                                                            : syncguard_fail_memory(err);
}

void sg_incidents_destroy(sg_incidents *incidents)
{
    pthread_mutex_destroy(&incidents->mutex);
}

void sg_incidents_forget(sg_incidents *incidents)
{
    memset(incidents, 0, sizeof *incidents);
    (void)sg_incidents_init(incidents, NULL);
}

/* ---- lines per minute ---- */

/* Whether one more line of this kind may be written; *left_out is the number of lines that were
 * left out before it. Caller holds the mutex. */
static bool incidents_allow_line(sg_incidents *incidents, sg_incident_kind kind, uint64_t *left_out)
{
    sg_log_limit *limit = &incidents->limits[kind];
    int64_t now = syncguard_clock_ns();
    if (now >= limit->minute_ends_ns) {
        limit->minute_ends_ns = now + SG_INCIDENT_MINUTE_NS;
        limit->lines = 0;
    }
    if (limit->lines >= SG_INCIDENT_LINES) {
        limit->left_out++;
        return false;
    }
    limit->lines++;
    *left_out = limit->left_out;
    limit->left_out = 0;
    return true;
}

static void incidents_write_line(const syncguard_backend *backend, syncguard_log_level level,
                                 const char *line, uint64_t left_out)
{
    if (left_out == 0)
        syncguard_backend_log(backend, level, "%s", line);
    else
        syncguard_backend_log(backend, level, "%s (%llu similar ones were not logged)", line,
                              (unsigned long long)left_out);
}

static void incidents_log_limited(syncguard_backend *backend, sg_incident_kind kind,
                                  syncguard_log_level level, const char *line)
{
    sg_incidents *incidents = &backend->core->incidents;
    uint64_t left_out = 0;
    pthread_mutex_lock(&incidents->mutex);
    bool allowed = incidents_allow_line(incidents, kind, &left_out);
    pthread_mutex_unlock(&incidents->mutex);
    if (allowed)
        incidents_write_line(backend, level, line, left_out);
}

static bool incidents_are_logged(const syncguard_backend *backend)
{
    return backend->core->options.log != NULL;
}

/* ---- lost locks ---- */

void sg_incidents_lost(syncguard_backend *backend, const char *key, size_t length,
                       syncguard_lost_reason reason)
{
    sg_incidents *incidents = &backend->core->incidents;
    sg_loss loss = {.reason = reason};
    sg_counters_lost(backend->core->counters, reason);
    if (!incidents_are_logged(backend))
        return;
    if (!sg_hash_text(backend->core->hash_secret, key, length, loss.key_hash))
        loss.key_hash[0] = '\0';
    pthread_mutex_lock(&incidents->mutex);
    size_t count = atomic_load(&incidents->loss_count);
    if (count < SG_INCIDENT_LOSSES) {
        incidents->losses[count] = loss;
        atomic_store(&incidents->loss_count, count + 1);
    } else {
        incidents->limits[SG_INCIDENT_LOST].left_out++;
    }
    pthread_mutex_unlock(&incidents->mutex);
}

static const char *incidents_loss_cause(syncguard_lost_reason reason)
{
    switch (reason) {
    case SYNCGUARD_LOST_ABSENT:
        return "the store no longer has it";
    case SYNCGUARD_LOST_MAX_HOLD:
        return "its max_hold_ms is over";
    default:
        return "no renewal was confirmed before its lease ended";
    }
}

void sg_incidents_log_losses(syncguard_backend *backend)
{
    sg_incidents *incidents = &backend->core->incidents;
    while (atomic_load(&incidents->loss_count) > 0) {
        uint64_t left_out = 0;
        bool allowed = false;
        sg_loss loss = {.reason = SYNCGUARD_LOST_NO};
        pthread_mutex_lock(&incidents->mutex);
        size_t count = atomic_load(&incidents->loss_count);
        if (count > 0) {
            loss = incidents->losses[0];
            memmove(incidents->losses, incidents->losses + 1, (count - 1) * sizeof loss);
            atomic_store(&incidents->loss_count, count - 1);
            allowed = incidents_allow_line(incidents, SG_INCIDENT_LOST, &left_out);
        }
        pthread_mutex_unlock(&incidents->mutex);
        if (!allowed)
            continue;
        char line[160];
        snprintf(line, sizeof line, "the lock of key %s is lost: %s", loss.key_hash,
                 incidents_loss_cause(loss.reason));
        incidents_write_line(backend, SYNCGUARD_LOG_ERROR, line, left_out);
    }
}

/* ---- renewals ---- */

static sg_renewal_result incidents_renewal_result(syncguard_status status)
{
    if (status == SYNCGUARD_OK)
        return SG_RENEWAL_CONFIRMED;
    return status == SYNCGUARD_ABSENT ? SG_RENEWAL_ABSENT : SG_RENEWAL_FAILED;
}

/* An interrupted request (one of its locks is being disposed of) says nothing about the store, and
 * is repeated at once. */
void sg_incidents_renewed(syncguard_backend *backend, const syncguard_extend_op *items,
                          size_t count, int64_t begun_ns, const syncguard_error *error)
{
    int64_t span_ns = syncguard_clock_ns() - begun_ns;
    char span[24];
    syncguard_status first_failure = SYNCGUARD_OK;
    size_t failed = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].status == SYNCGUARD_E_ABORTED)
            continue;
        sg_counters_renewal(backend->core->counters, incidents_renewal_result(items[i].status));
        if (items[i].status < SYNCGUARD_OK && failed++ == 0)
            first_failure = items[i].status;
    }
    if (!incidents_are_logged(backend))
        return;
    sg_format_duration(span_ns / SYNCGUARD_NS_PER_MS, span, sizeof span);
    char line[400];
    if (failed > 0) {
        snprintf(line, sizeof line,
                 "renewing %zu of %zu locks failed after %s: %s%s%s; trying again", failed, count,
                 span, syncguard_status_name(first_failure), error->message[0] != '\0' ? ": " : "",
                 error->message);
        incidents_log_limited(backend, SG_INCIDENT_RENEWAL, SYNCGUARD_LOG_WARN, line);
    } else if (span_ns >= SG_SLOW_RENEWAL_NS) {
        snprintf(line, sizeof line, "renewing %zu %s took %s", count, count == 1 ? "lock" : "locks",
                 span);
        incidents_log_limited(backend, SG_INCIDENT_RENEWAL, SYNCGUARD_LOG_WARN, line);
    }
}

/* ---- connections ---- */

void sg_incidents_reconnected(syncguard_backend *backend)
{
    sg_counters_reconnect(backend->core->counters);
    if (incidents_are_logged(backend))
        incidents_log_limited(backend, SG_INCIDENT_RECONNECT, SYNCGUARD_LOG_INFO,
                              "a connection to the store had to be replaced");
}
