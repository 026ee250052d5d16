/*
 * The fake server as tests use it: started by tests/servers, controlled over HTTP. The functions
 * fail the running test themselves.
 */
#ifndef FAKE_SERVER_H
#define FAKE_SERVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "servers/client.h"
#include <syncguard.h>
#include <syncguard/firestore.h>

typedef struct fake_server {
    test_server process;
    int port;
    char host[32]; /* 127.0.0.1:PORT */
    bool tls;      /* the test sets it after the start if the arguments ask for TLS */
} fake_server;

#define PREFIX "projects/test/databases/(default)/documents/"

/* arguments: NULL-terminated, may be NULL. */
void fake_server_start(fake_server *server, const char *const *arguments);
void fake_server_stop(fake_server *server);
/* method and path below /_/; body may be NULL. The caller must drop the answer. */
json_t *fake_server_control(const fake_server *server, const char *method, const char *path,
                            const char *body);
void fake_server_rules(const fake_server *server, const char *rules);
/* Resets documents, rules, settings and log to those of the start. */
void fake_server_reset(const fake_server *server);
/* Number of logged calls of this name (NULL: all). */
size_t fake_server_calls(const fake_server *server, const char *call);
/* Empties the log. */
void fake_server_forget(const fake_server *server);
/* The stored document, or NULL. The caller must drop it. */
json_t *fake_server_document(const fake_server *server, const char *name);
/* Text of a field's value of any type, or "". */
const char *fake_server_field(const json_t *document, const char *field);
/* Stores a lock document in the collection "locks". */
void fake_server_plant(const fake_server *server, const char *id, const char *key,
                       const char *lock_id, int64_t expires_at_ms);

/* Opens a handle that uses the server as an emulator; options may be NULL. */
syncguard_backend *fake_server_open(const fake_server *server, const syncguard_options *options);

int64_t clock_ms(void);
int64_t wall_ms(void);
void pause_ms(int64_t ms);

void check_status(syncguard_status got, syncguard_status wanted, const syncguard_error *err,
                  const char *text, const char *file, int line);
/* The call must use &err. */
#define assert_status(wanted, call)                                                                \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        check_status((call), (wanted), &err, #call, __FILE__, __LINE__);                           \
    } while (0)

/* Triggers an abort object after some time, from another thread. */
typedef struct later {
    pthread_t thread;
    syncguard_abort *abort_object;
    int64_t after_ms;
    _Atomic int64_t triggered_ns;
} later;
void later_start(later *l, int64_t after_ms);
/* Milliseconds since the trigger. */
double later_end(later *l);

/* Collects the log messages of the library. */
typedef struct log_book {
    pthread_mutex_t mutex;
    char text[8192];
    int warnings;
} log_book;
void log_book_write(void *context, syncguard_log_level level, const char *message);
#define LOG_BOOK_INIT                                                                              \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, "", 0                                                           \
    }

#endif
