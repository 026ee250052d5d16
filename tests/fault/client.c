/*
 * One client process of a fault run: several threads acquire, extend, release and read locks on a
 * few keys, at random, write to a fenced resource while they believe that they hold a lock, and
 * record all of it.
 *
 *     fault_client URL PREFIX OUT RESOURCE SEED THREADS KEYS SECONDS FORGET POLL_MS
 *
 * With POLL_MS 0 it uses single operations, so that each record is one answer of the store. A grant
 * ends at random: it is released, released twice, extended, or, once in FORGET times, left to
 * expire. Otherwise it uses the lock helper (helper.c), which pauses for POLL_MS between two tries
 * unless a release wakes it. FAULT_SIGNALS in the environment makes signals interrupt it all the
 * time, FAULT_DESCRIPTORS makes its descriptors begin above 1024.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "client.h"
#include "syncguard/sys/backend.h"
#include "test_support.h"

#define TIMEOUT_MS 1000

static uint32_t client_draw(worker *w, uint32_t below)
{
    return history_draw(&w->random, below);
}

void client_key(const client *c, uint32_t key, char *name, size_t size)
{
    snprintf(name, size, "%s-%u", c->prefix, key);
}

static history_record begin_mutation(const worker *w, history_kind kind, uint32_t key,
                                     const char *lock_id, int64_t ttl_ms)
{
    history_record r = history_begin(kind, key, w->number);
    if (lock_id != NULL)
        memcpy(r.lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    r.ttl_ms = ttl_ms;
    r.outcome = HISTORY_PENDING;
    history_put(w->c->out, &r);
    return r;
}

static void client_record_finish(const worker *w, history_record *r, syncguard_status status,
                                 history_outcome outcome)
{
    history_finish(w->c->out, r, (int)status, outcome);
}

static history_outcome client_mutation_outcome(syncguard_status status)
{
    if (status == SYNCGUARD_OK)
        return HISTORY_OK;
    if (status > SYNCGUARD_OK)
        return HISTORY_NO;
    return status == SYNCGUARD_E_INVALID_ARGUMENT ? HISTORY_FAILED : HISTORY_UNKNOWN;
}

static history_outcome client_query_outcome(syncguard_status status, bool yes)
{
    if (status < SYNCGUARD_OK)
        return HISTORY_FAILED;
    return yes ? HISTORY_OK : HISTORY_NO;
}

static void client_release(worker *w, uint32_t key, const char *lock_id)
{
    history_record r = begin_mutation(w, HISTORY_RELEASE, key, lock_id, 0);
    syncguard_status status = syncguard_release(w->c->backend, lock_id, NULL, NULL);
    client_record_finish(w, &r, status, client_mutation_outcome(status));
}

static syncguard_status client_extend(worker *w, uint32_t key, const char *lock_id, int64_t ttl_ms)
{
    history_record r = begin_mutation(w, HISTORY_EXTEND, key, lock_id, ttl_ms);
    syncguard_status status = syncguard_extend(w->c->backend, lock_id, ttl_ms, NULL, NULL, NULL);
    client_record_finish(w, &r, status, client_mutation_outcome(status));
    return status;
}

static void client_query(worker *w, uint32_t key)
{
    char name[64];
    client_key(w->c, key, name, sizeof name);
    if (client_draw(w, 2) == 0) {
        bool locked = false;
        history_record r = history_begin(HISTORY_IS_LOCKED, key, w->number);
        syncguard_status status = syncguard_is_locked(w->c->backend, name, NULL, &locked, NULL);
        client_record_finish(w, &r, status, client_query_outcome(status, locked));
    } else {
        syncguard_lock_info_raw info;
        history_record r = history_begin(HISTORY_LOOKUP, key, w->number);
        syncguard_status status = syncguard_get_by_key_raw(w->c->backend, name, NULL, &info, NULL);
        if (status == SYNCGUARD_OK)
            memcpy(r.lock_id, info.lock_id, SYNCGUARD_LOCK_ID_SIZE);
        client_record_finish(w, &r, status, client_query_outcome(status, status == SYNCGUARD_OK));
    }
}

static void client_resource_write(worker *w, uint32_t key, int64_t fence)
{
    history_write_resource(w->c->out, w->c->resource, w->number, key, fence);
}

/* Ends a grant in one of the ways of a holder. */
static void client_hold(worker *w, uint32_t key, const syncguard_grant *grant)
{
    int64_t fence = strtoll(grant->fence, NULL, 10);
    test_sleep_us(client_draw(w, 2000));
    client_resource_write(w, key, fence);
    if (client_draw(w, 4) == 0 &&
        client_extend(w, key, grant->lock_id, 50 + (int64_t)client_draw(w, 300)) == SYNCGUARD_OK)
        client_resource_write(w, key, fence);
    uint32_t end = client_draw(w, w->c->forget);
    if (end == 0) { /* left to expire, and used again at about that time */
        test_sleep_us(1000 * (900 + (int64_t)client_draw(w, 700)));
        (void)client_extend(w, key, grant->lock_id, 100);
        client_resource_write(w, key, fence);
    }
    if (end != 1) /* 1: forgotten */
        client_release(w, key, grant->lock_id);
    if (end > 1 && client_draw(w, 10) == 0) { /* no longer ours, perhaps another client's */
        client_release(w, key, grant->lock_id);
        (void)client_extend(w, key, grant->lock_id, 100);
    }
}

static void client_take(worker *w, uint32_t key)
{
    char name[64];
    syncguard_grant grant;
    client_key(w->c, key, name, sizeof name);
    history_record r =
        begin_mutation(w, HISTORY_ACQUIRE, key, NULL, 50 + (int64_t)client_draw(w, 400));
    syncguard_status status = syncguard_acquire(w->c->backend, name, r.ttl_ms, NULL, &grant, NULL);
    if (status == SYNCGUARD_OK) {
        memcpy(r.lock_id, grant.lock_id, SYNCGUARD_LOCK_ID_SIZE);
        r.fence = strtoll(grant.fence, NULL, 10);
    }
    client_record_finish(w, &r, status, client_mutation_outcome(status));
    if (status == SYNCGUARD_OK)
        client_hold(w, key, &grant);
    else
        test_sleep_us(status == SYNCGUARD_LOCKED ? client_draw(w, 3000) : 20000);
}

static void client_signal_ignore(int number)
{
    (void)number;
}

static void *client_worker_run(void *argument)
{
    worker *w = argument;
    while (syncguard_clock_ns() < w->c->end_ns) {
        uint32_t key = client_draw(w, w->c->keys);
        if (client_draw(w, 5) == 0)
            client_query(w, key);
        else if (w->c->poll_ms == 0)
            client_take(w, key);
        else
            helper_take(w, key);
    }
    syncguard_queue_close(w->queue);
    return NULL;
}

static int client_workers_run(client *c, uint32_t threads)
{
    worker *workers = calloc(threads, sizeof *workers);
    if (workers == NULL)
        return 1;
    for (uint32_t i = 0; i < threads; i++) {
        workers[i].c = c;
        workers[i].number = (uint32_t)getpid() * 256 + i;
        workers[i].random = (c->seed + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        if (pthread_create(&workers[i].thread, NULL, client_worker_run, &workers[i]) != 0)
            return 1;
    }
    for (uint32_t i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
    return 0;
}

/* Interrupts system calls all the time: the handler is installed without SA_RESTART. */
static bool storm_of_signals(void)
{
    struct sigaction action = {.sa_handler = client_signal_ignore};
    struct itimerval every = {{0, 500}, {0, 500}};
    return sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0;
}

/* Uses up the descriptors that select(2) could wait for. */
static bool use_up_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return false;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return false;
    int fd = -1;
    while (fd < 1100) {
        fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc != 11) {
        fprintf(stderr, "usage: fault_client URL PREFIX OUT RESOURCE SEED THREADS KEYS SECONDS"
                        " FORGET POLL_MS\n");
        return 64;
    }
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    client c = {.out = -1};
    c.prefix = argv[2];
    c.out = open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    c.resource = open(argv[4], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    c.seed = strtoull(argv[5], NULL, 10);
    c.keys = (uint32_t)strtoul(argv[7], NULL, 10);
    c.forget = (uint32_t)strtoul(argv[9], NULL, 10);
    c.poll_ms = strtoll(argv[10], NULL, 10);
    c.end_ns =
        syncguard_clock_ns() + (int64_t)(strtod(argv[8], NULL) * 1000.0) * SYNCGUARD_NS_PER_MS;
    if (c.out < 0 || c.resource < 0 || c.keys == 0 || c.forget == 0) {
        perror("fault_client");
        return 1;
    }
    if ((getenv("FAULT_SIGNALS") != NULL && !storm_of_signals()) ||
        (getenv("FAULT_DESCRIPTORS") != NULL && !use_up_descriptors())) {
        perror("fault_client");
        return 1;
    }
    syncguard_error err;
    if (syncguard_open(argv[1], &options, &c.backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "fault_client: %s: %s\n", syncguard_status_name(err.code), err.message);
        return 2;
    }
    int failed = client_workers_run(&c, (uint32_t)strtoul(argv[6], NULL, 10));
    syncguard_close(c.backend);
    close(c.out);
    close(c.resource);
    return failed;
}
