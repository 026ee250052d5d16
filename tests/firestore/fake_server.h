/*
 * The fake server as tests use it: started by tests/servers, controlled over HTTP. The functions
 * fail the running test themselves.
 */
#ifndef FAKE_SERVER_H
#define FAKE_SERVER_H

#include <jansson.h>
#include <stdatomic.h>
#include <unistd.h>

#include "servers/client.h"
#include "test_assert.h"
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
