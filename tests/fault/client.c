/*
 * One client process of a fault run: several threads take, extend, release and
 * look at locks on a few keys, at random, write to a fenced resource while they
 * believe they hold, and record all of it.
 *
 *     fault_client URL PREFIX OUT RESOURCE SEED THREADS KEYS SECONDS [FORGET]
 *
 * It uses single operations, not the lock helper, so that each record is one
 * decision of the store. A grant is given up at random: released, released twice,
 * extended, or, once in FORGET times (400), left to expire.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "history.h"
#include "syncguard.h"
#include "syncguard/sys/backend.h"

#define TIMEOUT_MS 1000

typedef struct client {
    syncguard_backend *backend;
    const char *prefix;
    int out;
    int resource;
    uint32_t keys;
    uint32_t forget;
    int64_t end_ns;
    uint64_t seed;
} client;

typedef struct worker {
    pthread_t thread;
    client *c;
    uint32_t number;
    uint64_t random;
} worker;

static uint32_t draw(worker *w, uint32_t below)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)((w->random >> 16) % below);
}

static void doze(int64_t us)
{
    struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

static void name_key(const client *c, uint32_t key, char *name, size_t size)
{
    snprintf(name, size, "%s-%u", c->prefix, key);
}

/* O_APPEND keeps the records of all threads whole. */
static void put(const worker *w, history_record *r)
{
    r->mark = HISTORY_MARK;
    if (write(w->c->out, r, sizeof *r) != (ssize_t)sizeof *r)
        fprintf(stderr, "fault_client: the history could not be written\n");
}

static history_record begin(const worker *w, history_kind kind, uint32_t key)
{
    history_record r;
    memset(&r, 0, sizeof r);
    r.kind = kind;
    r.key = key;
    r.thread = w->number;
    r.call_ns = syncguard_clock_ns();
    return r;
}

static history_record begin_mutation(const worker *w, history_kind kind, uint32_t key,
                                     const char *lock_id, int64_t ttl_ms)
{
    history_record r = begin(w, kind, key);
    if (lock_id != NULL)
        memcpy(r.lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    r.ttl_ms = ttl_ms;
    r.outcome = HISTORY_PENDING;
    put(w, &r);
    return r;
}

static void finish(const worker *w, history_record *r, syncguard_status status,
                   history_outcome outcome)
{
    r->return_ns = syncguard_clock_ns();
    r->status = (int32_t)status;
    r->outcome = outcome;
    put(w, r);
}

static history_outcome mutation(syncguard_status status)
{
    if (status == SYNCGUARD_OK)
        return HISTORY_OK;
    if (status > SYNCGUARD_OK)
        return HISTORY_NO;
    return status == SYNCGUARD_E_INVALID_ARGUMENT ? HISTORY_FAILED : HISTORY_UNKNOWN;
}

static history_outcome reading(syncguard_status status, bool yes)
{
    if (status < SYNCGUARD_OK)
        return HISTORY_FAILED;
    return yes ? HISTORY_OK : HISTORY_NO;
}

static void release(worker *w, uint32_t key, const char *lock_id)
{
    history_record r = begin_mutation(w, HISTORY_RELEASE, key, lock_id, 0);
    syncguard_status status = syncguard_release(w->c->backend, lock_id, NULL, NULL);
    finish(w, &r, status, mutation(status));
}

static syncguard_status extend(worker *w, uint32_t key, const char *lock_id, int64_t ttl_ms)
{
    history_record r = begin_mutation(w, HISTORY_EXTEND, key, lock_id, ttl_ms);
    syncguard_status status = syncguard_extend(w->c->backend, lock_id, ttl_ms, NULL, NULL, NULL);
    finish(w, &r, status, mutation(status));
    return status;
}

static void look(worker *w, uint32_t key)
{
    char name[64];
    name_key(w->c, key, name, sizeof name);
    if (draw(w, 2) == 0) {
        bool locked = false;
        history_record r = begin(w, HISTORY_IS_LOCKED, key);
        syncguard_status status = syncguard_is_locked(w->c->backend, name, NULL, &locked, NULL);
        finish(w, &r, status, reading(status, locked));
    } else {
        syncguard_lock_info_raw info;
        history_record r = begin(w, HISTORY_LOOKUP, key);
        syncguard_status status = syncguard_get_by_key_raw(w->c->backend, name, NULL, &info, NULL);
        if (status == SYNCGUARD_OK)
            memcpy(r.lock_id, info.lock_id, SYNCGUARD_LOCK_ID_SIZE);
        finish(w, &r, status, reading(status, status == SYNCGUARD_OK));
    }
}

/* The resource keeps, per key, the highest fence it has seen, and refuses lower ones. */
static void write_resource(worker *w, uint32_t key, int64_t fence)
{
    history_record r = begin(w, HISTORY_WRITE, key);
    int64_t highest = 0;
    off_t place = (off_t)(key * sizeof highest);
    bool accepted = false;
    r.fence = fence;
    /* Record locks belong to the process: threads of it must take turns, too. */
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 8};
    pthread_mutex_lock(&turn);
    if (fcntl(w->c->resource, F_SETLKW, &lock) == 0) {
        if (pread(w->c->resource, &highest, sizeof highest, place) != (ssize_t)sizeof highest)
            highest = 0;
        accepted = fence >= highest &&
                   pwrite(w->c->resource, &fence, sizeof fence, place) == (ssize_t)sizeof fence;
        lock.l_type = F_UNLCK;
        (void)fcntl(w->c->resource, F_SETLK, &lock);
    }
    pthread_mutex_unlock(&turn);
    finish(w, &r, SYNCGUARD_OK, accepted ? HISTORY_OK : HISTORY_NO);
}

/* What a holder does with a grant. */
static void hold(worker *w, uint32_t key, const syncguard_grant *grant)
{
    int64_t fence = strtoll(grant->fence, NULL, 10);
    doze(draw(w, 2000));
    write_resource(w, key, fence);
    if (draw(w, 4) == 0 &&
        extend(w, key, grant->lock_id, 50 + (int64_t)draw(w, 300)) == SYNCGUARD_OK)
        write_resource(w, key, fence);
    uint32_t end = draw(w, w->c->forget);
    if (end == 0) { /* left to expire, and used again about when it does */
        doze(1000 * (900 + (int64_t)draw(w, 700)));
        (void)extend(w, key, grant->lock_id, 100);
        write_resource(w, key, fence);
    }
    if (end != 1) /* 1: forgotten */
        release(w, key, grant->lock_id);
    if (end > 1 && draw(w, 10) == 0) { /* no longer ours, perhaps another's by now */
        release(w, key, grant->lock_id);
        (void)extend(w, key, grant->lock_id, 100);
    }
}

static void take(worker *w, uint32_t key)
{
    char name[64];
    syncguard_grant grant;
    name_key(w->c, key, name, sizeof name);
    history_record r = begin_mutation(w, HISTORY_ACQUIRE, key, NULL, 50 + (int64_t)draw(w, 400));
    syncguard_status status = syncguard_acquire(w->c->backend, name, r.ttl_ms, NULL, &grant, NULL);
    if (status == SYNCGUARD_OK) {
        memcpy(r.lock_id, grant.lock_id, SYNCGUARD_LOCK_ID_SIZE);
        r.fence = strtoll(grant.fence, NULL, 10);
    }
    finish(w, &r, status, mutation(status));
    if (status == SYNCGUARD_OK)
        hold(w, key, &grant);
    else
        doze(status == SYNCGUARD_LOCKED ? draw(w, 3000) : 20000);
}

static void *work(void *argument)
{
    worker *w = argument;
    while (syncguard_clock_ns() < w->c->end_ns) {
        uint32_t key = draw(w, w->c->keys);
        if (draw(w, 5) == 0)
            look(w, key);
        else
            take(w, key);
    }
    return NULL;
}

static int run(client *c, uint32_t threads)
{
    worker *workers = calloc(threads, sizeof *workers);
    if (workers == NULL)
        return 1;
    for (uint32_t i = 0; i < threads; i++) {
        workers[i].c = c;
        workers[i].number = (uint32_t)getpid() * 256 + i;
        workers[i].random = (c->seed + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return 1;
    }
    for (uint32_t i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
    return 0;
}

int main(int argc, char **argv)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_error err;
    client c = {.out = -1};

    if (argc != 9 && argc != 10) {
        fprintf(stderr, "usage: fault_client URL PREFIX OUT RESOURCE SEED THREADS KEYS SECONDS"
                        " [FORGET]\n");
        return 64;
    }
    options.timeout_ms = TIMEOUT_MS;
    c.prefix = argv[2];
    c.out = open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    c.resource = open(argv[4], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    c.seed = strtoull(argv[5], NULL, 10);
    c.keys = (uint32_t)strtoul(argv[7], NULL, 10);
    c.forget = argc > 9 ? (uint32_t)strtoul(argv[9], NULL, 10) : 400;
    c.end_ns =
        syncguard_clock_ns() + (int64_t)(strtod(argv[8], NULL) * 1000.0) * SYNCGUARD_NS_PER_MS;
    if (c.out < 0 || c.resource < 0 || c.keys == 0 || c.forget == 0) {
        perror("fault_client");
        return 1;
    }
    if (syncguard_open(argv[1], &options, &c.backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "fault_client: %s: %s\n", syncguard_status_name(err.code), err.message);
        return 2;
    }
    int failed = run(&c, (uint32_t)strtoul(argv[6], NULL, 10));
    syncguard_close(c.backend);
    close(c.out);
    close(c.resource);
    return failed;
}
