/*
 * The estimate of this machine's clock offset.
 *
 * Every answer of Firestore carries the time at which it was made, which lies between our sending
 * and our receiving: the middle of the two is the estimate, half of the span its error bound. The
 * estimate compares the server's time with our boot clock, which cannot step: so a step of the wall
 * clock shows at once, without another answer. The best sample stays until a newer one is better
 * than what ageing has made of it.
 *
 * Locking: clock->mutex guards the estimate and is a leaf; the log is called without it.
 */
#include "clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Two oscillators may drift apart by this much, in nanoseconds per microsecond of age: 500 ppm is
 * more than NTP lets a clock slew. */
#define AGEING_PPM 500
#define LOG_PAUSE_NS (INT64_C(60000) * SYNCGUARD_NS_PER_MS)
#define ASK_PAUSE_NS (INT64_C(500) * SYNCGUARD_NS_PER_MS)

sg_firestore_instant sg_firestore_now(void)
{
    sg_firestore_instant at;
    at.boot_ns = syncguard_clock_ns();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at.span_ns = syncguard_clock_ns() - at.boot_ns;
    at.wall_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / SYNCGUARD_NS_PER_MS;
    at.wall_ns = (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    return at;
}

syncguard_status sg_firestore_clock_init(sg_firestore_clock *clock,
                                         const syncguard_backend *backend, int64_t max_drift_ms,
                                         syncguard_error *err)
{
    memset(clock, 0, sizeof *clock);
    clock->backend = backend;
    clock->max_drift_ms = max_drift_ms;
    if (pthread_mutex_init(&clock->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

void sg_firestore_clock_destroy(sg_firestore_clock *clock)
{
    pthread_mutex_destroy(&clock->mutex);
}

static int64_t firestore_clock_aged_error(const sg_firestore_clock *clock, int64_t now_ns)
{
    int64_t age_us = (now_ns - clock->taken_ns) / 1000;
    return clock->error_ns + (age_us > 0 ? age_us * AGEING_PPM / 1000 : 0);
}

void sg_firestore_clock_sample(sg_firestore_clock *clock, int64_t server_ns, int64_t slack_ns,
                               int64_t start_ns, int64_t end_ns)
{
    int64_t half = (end_ns - start_ns) / 2;
    int64_t base = server_ns - (start_ns + half);
    int64_t error = half + slack_ns;
    if (half < 0)
        return;
    pthread_mutex_lock(&clock->mutex);
    int64_t kept = firestore_clock_aged_error(clock, end_ns);
    /* Two correct samples overlap. If they do not, the server's clock (or the server) changed, and
     * the newer one counts. */
    bool disjoint = llabs(base - clock->base_ns) > kept + error;
    if (clock->samples == 0 || error <= kept || disjoint) {
        clock->base_ns = base;
        clock->error_ns = error;
        clock->taken_ns = end_ns;
    }
    clock->samples++;
    pthread_mutex_unlock(&clock->mutex);
}

bool sg_firestore_clock_read(sg_firestore_clock *clock, const sg_firestore_instant *at,
                             syncguard_firestore_clock_info *info)
{
    int64_t half = at->span_ns / 2;
    int64_t now = at->boot_ns + half;
    pthread_mutex_lock(&clock->mutex);
    bool known = clock->samples > 0;
    if (known) {
        int64_t from_sample = llabs(now - clock->taken_ns); /* the sample may be the newer one */
        info->offset_us = (at->wall_ns - (now + clock->base_ns)) / 1000;
        info->error_us =
            (firestore_clock_aged_error(clock, clock->taken_ns + from_sample) + half) / 1000 + 1;
        info->age_ms = from_sample / SYNCGUARD_NS_PER_MS;
        info->samples = clock->samples;
    }
    pthread_mutex_unlock(&clock->mutex);
    return known;
}

int64_t sg_firestore_clock_certain_us(const syncguard_firestore_clock_info *info)
{
    int64_t certain = llabs(info->offset_us) - info->error_us;
    return certain > 0 ? certain : 0;
}

/* Returns whether something that was last done at *last_ns is due, and if so sets *last_ns to
 * now. */
static bool firestore_clock_claim_due(sg_firestore_clock *clock, int64_t *last_ns, int64_t pause_ns)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&clock->mutex);
    bool is_due = *last_ns == 0 || now - *last_ns >= pause_ns;
    if (is_due)
        *last_ns = now;
    pthread_mutex_unlock(&clock->mutex);
    return is_due;
}

bool sg_firestore_clock_may_ask(sg_firestore_clock *clock)
{
    return firestore_clock_claim_due(clock, &clock->asked_ns, ASK_PAUSE_NS);
}

syncguard_status sg_firestore_clock_check(sg_firestore_clock *clock, sg_firestore_clock_use use,
                                          const sg_firestore_instant *at, syncguard_error *err)
{
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    int64_t limit_ms = clock->max_drift_ms;
    if (!sg_firestore_clock_read(clock, at, &info))
        return SYNCGUARD_OK;
    int64_t certain_us = sg_firestore_clock_certain_us(&info);
    long long offset_ms = (long long)(info.offset_us / 1000);
    long long error_ms = (long long)((info.error_us + 999) / 1000);
    if (certain_us >= SYNCGUARD_FIRESTORE_CLOCK_WARN_MS * INT64_C(1000) &&
        firestore_clock_claim_due(clock, &clock->logged_ns, LOG_PAUSE_NS))
        syncguard_backend_log(clock->backend, SYNCGUARD_LOG_WARN,
                              "this machine's clock is off by %lldms (+-%lldms), and "
                              "it decides which locks have expired",
                              offset_ms, error_ms);
    if (use == SG_FIRESTORE_EXPIRY && info.offset_us > 0)
        return SYNCGUARD_OK;
    if (limit_ms > 0 && certain_us >= limit_ms * 1000)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "CLOCK_DRIFT",
                              "this machine's clock is off by %lldms (+-%lldms), "
                              "max_clock_drift_ms is %lld",
                              offset_ms, error_ms, (long long)limit_ms);
    return SYNCGUARD_OK;
}

bool sg_firestore_time_parse(const char *text, int64_t *ns)
{
    struct tm parts;
    memset(&parts, 0, sizeof parts);
    text = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
    int64_t fraction = 0;
    if (text != NULL && *text == '.') {
        int64_t scale = 100000000;
        for (text++; *text >= '0' && *text <= '9'; text++, scale /= 10)
            fraction += (*text - '0') * scale;
    }
    if (text == NULL || strcmp(text, "Z") != 0 || parts.tm_year < 70 || parts.tm_year > 300)
        return false;
    time_t seconds = timegm(&parts);
    if (seconds < 0)
        return false;
    *ns = (int64_t)seconds * INT64_C(1000000000) + fraction;
    return true;
}
