/*
 * What the Redis tests share: a raw client that shows what is stored, more servers for tests that
 * need their own, and a proxy that loses replies. The tests run beside servers that tests/servers
 * starts: the last argument is the URL, the environment says where the servers are.
 */
#ifndef TESTS_REDIS_SUPPORT_H
#define TESTS_REDIS_SUPPORT_H

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "servers/client.h"
#include "syncguard/redis.h"
#include "syncguard/sys/backend.h"
#include "test_assert.h"

/* The URL that tests/servers gave, and port and pid of the n-th server. */
extern const char *redis_url;
int redis_port(int n);
pid_t redis_pid(int n);

/* Raw commands to the first server (or another port). Never NULL: fails the test instead. */
redisReply *raw(const char *format, ...);
redisReply *raw_at(int port, const char *format, ...);
void raw_argv_at(int port, int argc, const char **argv, const size_t *sizes);
/* Runs a command and forgets the reply. */
void raw_do(const char *format, ...);
long long raw_int(const char *format, ...);
/* Text of a string reply, "" for nil; valid until the next call. */
const char *raw_text(const char *format, ...);
/* Sum of calls of a command, from INFO commandstats. */
long raw_calls(const char *command);

/* A handle on redis_url, or on a server of this machine; extra is added to the query. */
syncguard_backend *open_with(const char *extra);
syncguard_backend *open_port(int port, const char *extra);

/* The handle of a group of tests on redis_url: open_store and close_store are its setup. */
extern syncguard_backend *store;
int open_store(void **state);
int close_store(void **state);
/* Setup of a single test: an empty server. */
int flush_all(void **state);
/* A lock id of another writer. */
#define OTHER_ID "Zm9yZWlnbi1sb2NrLWlkLQ"
syncguard_grant take_lock(const char *key, int64_t ttl_ms);

/* One more server, for tests that stop, stall or restart it. */
typedef struct server {
    test_server process;
    pid_t pid;
    int port;
} server;
/* Options of a server that writes nothing to the disk. */
extern const char *const without_persistence[];
/* options: further command line words for redis-server, or NULL. port 0: a free one. */
void server_start(server *s, int port, const char *const *options);
/* SIGKILL, and wait for it. */
void server_kill(server *s);
void server_remove(server *s);

/* A proxy between client and server. It loses the next `lose` replies by closing the connection,
 * and never answers the first `silent` connections. With `last` it passes on the next reply, then
 * closes the connection and never answers again. */
typedef struct proxy {
    int port;
    int target;
    int listener;
    atomic_int lose;
    atomic_int silent;
    atomic_bool last;
    atomic_int resets;   /* connections that the client cut off, rather than closed */
    atomic_int delay_ms; /* each way */
    atomic_int accepted; /* connections so far */
    atomic_bool stop;
    pthread_t thread;
} proxy;
void proxy_start(proxy *p, int target);
void proxy_stop(proxy *p);

/* Well before the default timeout of 5 s, at which a call that hangs would end. A busy machine may
 * need this long for a call that takes milliseconds. */
#define PROMPT_MS 3000

extern syncguard_error err;

/* Reads the arguments. SIGPIPE is not ignored, because the library must not raise it. */
void redis_begin(int argc, char **argv);

#endif
