/*
 * A process of its own for the SQLite tests: fork alone is refused by the
 * backend, so tests start this program.
 *
 *   worker open URL                          status name, then the message
 *   worker acquire URL KEY TTL               acquires and leaves the lock: "FENCE ID"
 *   worker try URL KEY                       "acquired FENCE" or "locked"
 *   worker pairs URL N EXTENDS [KEY]         N grants, each extended and released
 *   worker grants URL N                      N grants with release; one line per outcome
 *   worker fences URL KEY                    for ever: acquire, print the fence, release
 *   worker count URL KEY FILE THREADS N      increments the number in FILE under the lock;
 *                                            appends number and fence to FILE.log, under it too
 *   worker relay ...                         as count, without polling, and all processes give way
 *   worker wait URL KEY                      prints "waiting", then its time of the grant in us
 *   worker hold FILE                         write-locks a database until stdin ends
 *   worker as UID ...                        any of these as another user
 *   worker limit BYTES ...                   any of these with a limit on file sizes
 *   worker over FILE TARGET ...              any of these with FILE mounted over TARGET
 *   worker shift SECONDS ...                 any of these in a time namespace with its boot clock
 *                                            ahead by that much
 *   worker enter SECONDS URL KEY             acquires, enters a shifted time namespace, tries again
 *   worker unentered URL                     opens with a time namespace made but not entered
 * Where the system does not permit namespaces, the exit code is 77.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "syncguard.h"
#include "syncguard/sqlite.h"
#include "test_support.h"

static int sqlite_worker_fail(const char *what, syncguard_status status, const syncguard_error *err)
{
    printf("%s: %s %s: %s\n", what, syncguard_status_name(status), err->native, err->message);
    fflush(stdout);
    return 3;
}

static int sqlite_worker_number_parse(const char *text)
{
    return (int)strtol(text, NULL, 10);
}

static int sqlite_worker_acquire(syncguard_backend *backend, const char *key, int64_t ttl_ms)
{
    syncguard_grant grant;
    syncguard_error err;
    syncguard_status status = syncguard_acquire(backend, key, ttl_ms, NULL, &grant, &err);
    if (status == SYNCGUARD_LOCKED) {
        printf("locked\n");
        return 1;
    }
    if (status != SYNCGUARD_OK)
        return sqlite_worker_fail("acquire", status, &err);
    printf("%s %s\n", grant.fence, grant.lock_id);
    return 0;
}

static int sqlite_worker_pairs(syncguard_backend *backend, int pairs, int extends, const char *key)
{
    for (int i = 0; i < pairs; i++) {
        syncguard_grant grant;
        syncguard_error err;
        syncguard_status status = syncguard_acquire(backend, key, 30000, NULL, &grant, &err);
        for (int e = 0; e < extends && status == SYNCGUARD_OK; e++)
            status = syncguard_extend(backend, grant.lock_id, 30000, NULL, NULL, &err);
        if (status == SYNCGUARD_OK)
            status = syncguard_release(backend, grant.lock_id, NULL, &err);
        if (status != SYNCGUARD_OK)
            return sqlite_worker_fail("pair", status, &err);
    }
    return 0;
}

static int sqlite_worker_grants(syncguard_backend *backend, int count)
{
    for (int i = 0; i < count; i++) {
        syncguard_grant grant;
        syncguard_error err;
        syncguard_status status = syncguard_acquire(backend, "grant", 30000, NULL, &grant, &err);
        if (status == SYNCGUARD_OK) {
            printf("granted %s\n", grant.fence);
            status = syncguard_release(backend, grant.lock_id, NULL, &err);
            if (status != SYNCGUARD_OK)
                return sqlite_worker_fail("release", status, &err);
        } else {
            (void)sqlite_worker_fail("acquire", status, &err);
        }
    }
    return 0;
}

static int sqlite_worker_fences(syncguard_backend *backend, const char *key)
{
    for (;;) {
        syncguard_grant grant;
        syncguard_error err;
        char line[SYNCGUARD_FENCE_SIZE + 1];
        syncguard_status status = syncguard_acquire(backend, key, 30000, NULL, &grant, &err);
        if (status != SYNCGUARD_OK)
            return sqlite_worker_fail("acquire", status, &err);
        snprintf(line, sizeof line, "%s\n", grant.fence);
        if (write(1, line, strlen(line)) < 0)
            return 1;
        status = syncguard_release(backend, grant.lock_id, NULL, &err);
        if (status != SYNCGUARD_OK)
            return sqlite_worker_fail("release", status, &err);
    }
}

typedef struct counting {
    syncguard_backend *backend;
    const char *key;
    const char *file;
    int times;
    bool relay;
    int result;
} counting;

/* Reads the number and writes it back plus one. Only the lock on the key protects it. */
static long sqlite_worker_increment(const char *file)
{
    char text[32] = "";
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0 || pread(fd, text, sizeof text - 1, 0) < 0)
        return -1;
    long value = strtol(text, NULL, 10) + 1;
    snprintf(text, sizeof text, "%ld\n", value);
    if (pwrite(fd, text, strlen(text), 0) < 0)
        value = -1;
    close(fd);
    return value;
}

static void sqlite_worker_log_append(const char *file, long value, const char *fence)
{
    char path[512];
    char line[64];
    snprintf(path, sizeof path, "%s.log", file);
    snprintf(line, sizeof line, "%ld %s\n", value, fence);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, strlen(line)) < 0)
        perror(path);
    if (fd >= 0)
        close(fd);
}

static void *count_thread(void *argument)
{
    counting *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 120000;
    if (self->relay) {
        options.retry_delay_ms = 60000;
        options.backoff = SYNCGUARD_BACKOFF_FIXED;
        options.jitter = SYNCGUARD_JITTER_NONE;
    }
    for (int i = 0; i < self->times; i++) {
        syncguard_lock *lock = NULL;
        syncguard_error err;
        syncguard_status status =
            syncguard_lock_acquire(self->backend, self->key, &options, &lock, &err);
        if (status != SYNCGUARD_OK) {
            self->result = sqlite_worker_fail("lock", status, &err);
            return NULL;
        }
        sqlite_worker_log_append(self->file, sqlite_worker_increment(self->file),
                                 syncguard_lock_fence(lock));
        status = syncguard_lock_release(lock, NULL, &err);
        syncguard_lock_dispose(lock);
        if (status != SYNCGUARD_OK) {
            self->result = sqlite_worker_fail("release", status, &err);
            return NULL;
        }
        if (self->relay)
            (void)sched_yield();
    }
    return NULL;
}

static int sqlite_worker_count(syncguard_backend *backend, char **arguments, bool relay)
{
    enum { MOST = 64 };
    pthread_t threads[MOST];
    counting work[MOST];
    int count = sqlite_worker_number_parse(arguments[2]);
    int result = 0;
    for (int i = 0; i < count && i < MOST; i++) {
        work[i] = (counting){backend,      arguments[0],
                             arguments[1], sqlite_worker_number_parse(arguments[3]),
                             relay,        0};
        if (pthread_create(&threads[i], NULL, count_thread, &work[i]) != 0)
            return 1;
    }
    for (int i = 0; i < count && i < MOST; i++) {
        pthread_join(threads[i], NULL);
        result = work[i].result != 0 ? work[i].result : result;
    }
    return result;
}

static void say_waiting(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    (void)context;
    (void)waited_ms;
    (void)remaining_ms;
    if (attempts == 1 || attempts == 2) {
        printf("waiting\n");
        fflush(stdout);
    }
}

static int sqlite_worker_wait(syncguard_backend *backend, const char *key)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 30000;
    options.retry_delay_ms = 5000; /* polling would show */
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.on_wait = say_waiting;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    syncguard_status status = syncguard_lock_acquire(backend, key, &options, &lock, &err);
    if (status != SYNCGUARD_OK)
        return sqlite_worker_fail("lock", status, &err);
    printf("%" PRId64 "\n", test_now_us());
    syncguard_lock_dispose(lock);
    return 0;
}

static int sqlite_worker_hold(const char *file)
{
    sqlite3 *db = NULL;
    if (sqlite3_open_v2(file, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK ||
        sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) {
        printf("hold: %s\n", sqlite3_errmsg(db));
        return 3;
    }
    printf("held\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        continue;
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    return 0;
}

static int with_store(const char *command, char **arguments)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    int result = 64;
    syncguard_status status = syncguard_open(arguments[0], NULL, &backend, &err);
    if (status != SYNCGUARD_OK) {
        printf("%s %s %s\n", syncguard_status_name(status), err.native, err.message);
        return 2;
    }
    if (strcmp(command, "open") == 0) {
        printf("Ok\n");
        result = 0;
    } else if (strcmp(command, "acquire") == 0) {
        result =
            sqlite_worker_acquire(backend, arguments[1], sqlite_worker_number_parse(arguments[2]));
    } else if (strcmp(command, "try") == 0) {
        result = sqlite_worker_acquire(backend, arguments[1], 30000);
    } else if (strcmp(command, "pairs") == 0) {
        result = sqlite_worker_pairs(backend, sqlite_worker_number_parse(arguments[1]),
                                     sqlite_worker_number_parse(arguments[2]),
                                     arguments[3] == NULL ? "pair" : arguments[3]);
    } else if (strcmp(command, "grants") == 0) {
        result = sqlite_worker_grants(backend, sqlite_worker_number_parse(arguments[1]));
    } else if (strcmp(command, "fences") == 0) {
        result = sqlite_worker_fences(backend, arguments[1]);
    } else if (strcmp(command, "count") == 0 || strcmp(command, "relay") == 0) {
        result = sqlite_worker_count(backend, arguments + 1, command[0] == 'r');
    } else if (strcmp(command, "wait") == 0) {
        result = sqlite_worker_wait(backend, arguments[1]);
    }
    syncguard_close(backend);
    return result;
}

static bool sqlite_worker_become(uid_t user)
{
    /* Loads the module while it can still be reached: the build may lie in a private folder. */
    syncguard_backend *none = NULL;
    (void)!syncguard_open("sqlite:", NULL, &none, NULL);
    return setgroups(0, NULL) == 0 && setgid((gid_t)user) == 0 && setuid(user) == 0;
}

static bool mount_over(const char *file, const char *target)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount(file, target, NULL, MS_BIND, NULL) == 0;
}

/* The namespace applies to children, and to this process once it enters it. */
static bool make_shifted_namespace(const char *seconds)
{
    char text[64];
    int length = snprintf(text, sizeof text, "boottime %s 0\n", seconds);
    if (unshare(CLONE_NEWTIME) != 0)
        return false;
    int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, (size_t)length) == length;
    if (fd >= 0)
        close(fd);
    return written;
}

/* Runs the rest in a child, which is in the new namespace. */
static int sqlite_worker_shifted(const char *seconds, char **rest)
{
    int status = 0;
    if (!make_shifted_namespace(seconds))
        return 77;
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", rest);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 4;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* unsure: also makes a namespace for its children afterwards, so that its own shift is unknown. */
static int sqlite_worker_enter(bool unsure, const char *seconds, const char *url, const char *key)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    syncguard_status status = syncguard_open(url, NULL, &backend, &err);
    if (status != SYNCGUARD_OK)
        return sqlite_worker_fail("open", status, &err);
    int result = sqlite_worker_acquire(backend, key, 60000);
    if (result == 0 && !make_shifted_namespace(seconds))
        result = 77;
    if (result == 0) {
        int fd = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
        bool entered =
            fd >= 0 && setns(fd, CLONE_NEWTIME) == 0 && (!unsure || unshare(CLONE_NEWTIME) == 0);
        result = entered ? sqlite_worker_acquire(backend, key, 60000) : 77;
        close(fd);
    }
    if (unsure && result == 3) /* the next attempt must fail, too */
        result = sqlite_worker_acquire(backend, key, 60000);
    syncguard_close(backend);
    return result;
}

static bool limit_files(long bytes)
{
    struct rlimit limit = {(rlim_t)bytes, (rlim_t)bytes};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    return sigaction(SIGXFSZ, &ignore, NULL) == 0 && setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

int main(int argc, char **argv)
{
    static char buffer[1 << 16];
    (void)setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    while (argc > 3 && (strcmp(argv[1], "as") == 0 || strcmp(argv[1], "limit") == 0)) {
        bool done = argv[1][0] == 'a'
                        ? sqlite_worker_become((uid_t)sqlite_worker_number_parse(argv[2]))
                        : limit_files(sqlite_worker_number_parse(argv[2]));
        if (!done) {
            printf("%s: errno %d\n", argv[1], errno);
            return 4;
        }
        argc -= 2;
        argv += 2;
    }
    if (argc > 4 && strcmp(argv[1], "over") == 0) {
        if (!mount_over(argv[2], argv[3]))
            return 77;
        argc -= 3;
        argv += 3;
    }
    if (argc > 4 && strcmp(argv[1], "shift") == 0) {
        const char *seconds = argv[2];
        argv[2] = argv[0];
        return sqlite_worker_shifted(seconds, argv + 2);
    }
    char *padded[8] = {0};
    for (int i = 0; i < 7 && i + 2 < argc; i++)
        padded[i] = argv[i + 2];
    int result = 64;
    if (argc >= 3 && strcmp(argv[1], "hold") == 0)
        result = sqlite_worker_hold(argv[2]);
    else if (argc >= 5 && (strcmp(argv[1], "enter") == 0 || strcmp(argv[1], "stray") == 0))
        result = sqlite_worker_enter(argv[1][0] == 's', argv[2], argv[3], argv[4]);
    else if (argc >= 3 && strcmp(argv[1], "unentered") == 0)
        result = make_shifted_namespace("100") ? with_store("open", padded) : 77;
    else if (argc >= 3)
        result = with_store(argv[1], padded);
    fflush(stdout);
    return result;
}
