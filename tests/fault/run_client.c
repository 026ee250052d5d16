/*
 * A client that is `syncguard run`, again and again.
 *
 *     fault_run SYNCGUARD URL PREFIX OUT RESOURCE SEED KEYS SECONDS
 *
 * Starts the command on a random key with this program as its child (fault_run --child ...). The
 * child records the grant that it was started under, writes to the resource, records continuously
 * that it is alive, and ignores SIGTERM. Every tenth command is killed outright, so that its
 * watchdog must end the child.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "history.h"
#include "test_support.h"

#define TTL_MS 1500
#define FLAGS (HISTORY_HELPER | HISTORY_RENEWED | HISTORY_COMMAND | HISTORY_RETRIES)

static int64_t run_client_now_ns(void)
{
    return history_begin(HISTORY_CHILD, 0, 0).call_ns;
}

/* ---- the child ---- */

/* ---- child OUT RESOURCE KEY THREAD CALL_NS HOLD_US ---- */
static int be_child(char **argv)
{
    int out = open(argv[2], O_WRONLY | O_APPEND | O_CLOEXEC);
    int resource = open(argv[3], O_RDWR | O_CLOEXEC);
    uint32_t key = (uint32_t)strtoul(argv[4], NULL, 10);
    uint32_t thread = (uint32_t)strtoul(argv[5], NULL, 10);
    const char *id = getenv("SYNCGUARD_LOCK_ID");
    const char *fence = getenv("SYNCGUARD_FENCE");
    history_record r = history_begin(HISTORY_ACQUIRE, key, thread);
    int64_t end = r.call_ns + strtoll(argv[7], NULL, 10) * 1000;
    (void)signal(SIGTERM, SIG_IGN); /* a program that does not end when asked to */
    if (out < 0 || resource < 0 || id == NULL || strlen(id) != 22 || fence == NULL)
        return 70;
    r.call_ns = strtoll(argv[6], NULL, 10);
    r.flags = FLAGS;
    r.ttl_ms = TTL_MS;
    memcpy(r.lock_id, id, strlen(id));
    r.fence = strtoll(fence, NULL, 10);
    history_finish(out, &r, 0, HISTORY_OK);
    history_write_resource(out, resource, thread, key, r.fence);
    do {
        history_record alive = history_begin(HISTORY_CHILD, key, thread);
        memcpy(alive.lock_id, r.lock_id, sizeof alive.lock_id);
        alive.fence = r.fence;
        history_finish(out, &alive, 0, HISTORY_OK);
        test_sleep_us(2000);
    } while (run_client_now_ns() < end);
    return 0;
}

/* ---- the parent ---- */

typedef struct runner {
    char **argv;
    int out;
    uint32_t keys;
    uint32_t thread;
    uint64_t random;
} runner;

static pid_t run_client_start(const runner *w, const history_record *r, int64_t hold_us)
{
    char key[64], number[16], thread[16];
    snprintf(key, sizeof key, "%s-%u", w->argv[3], r->key);
    snprintf(number, sizeof number, "%u", r->key);
    snprintf(thread, sizeof thread, "%u", r->thread);
    char call[24];
    snprintf(call, sizeof call, "%lld", (long long)r->call_ns);
    char hold[24];
    snprintf(hold, sizeof hold, "%lld", (long long)hold_us);
    char ttl[16];
    snprintf(ttl, sizeof ttl, "%dms", TTL_MS);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        (void)dup2(null, STDERR_FILENO);
        execl(w->argv[1], w->argv[1], "run", "-b", w->argv[2], "-w", "3s", "--ttl", ttl, key, "--",
              w->argv[0], "--child", w->argv[4], w->argv[5], number, thread, call, hold,
              (char *)NULL);
        _exit(127);
    }
    return pid;
}

static int run_client_await(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The child has recorded the grant, if there was one: only the end of the attempt is left to
 * record. */
static void run_once(runner *w)
{
    /* Mostly two of the command's keys, see helper.c. */
    uint32_t key = history_draw(&w->random, 2) + 2 * w->keys;
    if (history_draw(&w->random, 8) == 0)
        key = history_draw(&w->random, 6 * w->keys);
    history_record r = history_begin(HISTORY_ACQUIRE, key, w->thread);
    int64_t hold_us = 1000 + (int64_t)history_draw(&w->random, 20000);
    bool killed = history_draw(&w->random, 10) == 0;
    if (killed)
        hold_us = INT64_C(1000) * 5 * TTL_MS; /* until it is ended */
    else if (history_draw(&w->random, 10) == 0)
        hold_us = 1000 * (int64_t)history_draw(&w->random, 2 * TTL_MS); /* needs renewals */
    r.flags = FLAGS;
    r.ttl_ms = TTL_MS;
    r.outcome = HISTORY_PENDING;
    history_put(w->out, &r);
    pid_t pid = run_client_start(w, &r, hold_us);
    if (pid < 0)
        return;
    if (killed) {
        test_sleep_us(150000 + (int64_t)history_draw(&w->random, 100000));
        kill(pid, SIGKILL);
    }
    int code = run_client_await(pid);
    if (code == 75) /* 69 would mean that the store did not answer */
        history_finish(w->out, &r, 0, HISTORY_UNKNOWN);
    history_record end = history_begin(HISTORY_CHILD, r.key, w->thread);
    end.call_ns = r.call_ns;
    history_finish(w->out, &end, code, HISTORY_NO);
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "--child") == 0)
        return be_child(argv);
    if (argc != 9) {
        fprintf(stderr, "usage: fault_run SYNCGUARD URL PREFIX OUT RESOURCE SEED KEYS SECONDS\n");
        return 64;
    }
    runner w = {.argv = argv, .keys = (uint32_t)strtoul(argv[7], NULL, 10)};
    w.out = open(argv[4], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int resource = open(argv[5], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    w.thread = (uint32_t)getpid() * 256;
    w.random = (strtoull(argv[6], NULL, 10) + 1) * UINT64_C(0x9e3779b97f4a7c15);
    if (w.out < 0 || resource < 0 || w.keys == 0)
        return 1;
    int64_t end = run_client_now_ns() + (int64_t)(strtod(argv[8], NULL) * 1e9);
    while (run_client_now_ns() < end)
        run_once(&w);
    close(resource);
    close(w.out);
    return 0;
}
