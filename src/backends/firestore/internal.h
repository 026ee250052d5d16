/*
 * What the files of the Firestore backend share.
 *
 *   lane.c      how libcurl is set up for a connection
 *   http.c      the pool of connections: one request in one caller's thread, within its limits
 *   auth.c      where credentials come from, and the cached access token
 *   jwt.c       RS256 assertions of service accounts
 *   clock.c     the estimate of this machine's offset
 *   names.c     document names, checks of collections
 *   document.c  JSON of locks and counters
 *   memo.c      what this process knows of the locks that it acquired
 *   rest.c      the four calls, and what their answers mean
 *   acquire.c   acquire
 *   change.c    release and extend
 *   ops.c       the other operations, and their table
 *   examine.c   list and examine
 *   survey.c    what the collections hold that nobody else sees; for examine
 *   open.c      options, URL, module
 *
 * Locks of threads: the pool's, the token's, the clock's and the memo's mutex are leaves. None is
 * held while another is taken, while something is sent, or while a callback runs.
 */
#ifndef SG_FIRESTORE_INTERNAL_H
#define SG_FIRESTORE_INTERNAL_H

#include <jansson.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "syncguard/firestore.h"
#include "syncguard/sys/backend.h"

#define FS_MAX_REPLY_BYTES (8u << 20)
#define FS_MAX_ATTEMPTS 5
#define FS_DEFAULT_CONNECTIONS 32
#define FS_MAX_CONNECTIONS 1024
#define FS_MAX_STUCK 64 /* transfers that wait for a resolver after their caller gave up */
#define FS_TIME_SIZE 40 /* RFC 3339 text of a document's updateTime */

/* --- http.c --- */

typedef struct fs_lane fs_lane;

typedef struct fs_pool {
    pthread_mutex_t mutex;
    syncguard_gate gate;
    fs_lane *idle; /* last used first */
    fs_lane *all;  /* every lane of this process, for after_fork */
    char *ca_file;
    struct x509_store_st *trusted; /* NULL: libcurl reads the CA certificates itself */
    atomic_int *holders; /* of this very number: the pool, and each transfer left to a resolver */
} fs_pool;

typedef struct fs_request {
    const char *url;
    const char *body; /* NULL: GET */
    size_t body_length;
    const char *headers[3]; /* whole lines; NULL ends them */
    bool direct;            /* never through a proxy */
} fs_request;

/* What became of a request. Valid also after a failure, but for status and body. */
typedef struct fs_reply {
    long status;
    char *body;
    size_t length;
    size_t capacity;
    int64_t start_ns; /* clock when the request could leave; setting up a connection is over */
    int64_t end_ns;
    int64_t date_s; /* of the Date header; 0 if there is none */
    bool sent;      /* something of it may have reached the server */
    bool resent;    /* it may have reached the server more than once */
    bool broken;    /* failure: the connection broke before the answer was complete */
} fs_reply;

/* tls: the server is reached over TLS. */
syncguard_status sg_fs_pool_init(fs_pool *pool, int connections, const char *ca_file, bool tls,
                                 syncguard_error *err);
void sg_fs_pool_destroy(fs_pool *pool);
/* In a forked child: closes the parent's descriptors unused and starts empty. */
syncguard_status sg_fs_pool_forget(fs_pool *pool, int connections, syncguard_error *err);
/* Any HTTP answer is OK. The caller ends with sg_fs_reply_free in every case. */
syncguard_status sg_fs_transfer(fs_pool *pool, const fs_request *request,
                                const syncguard_limits *limits, fs_reply *reply,
                                syncguard_error *err);
/* Wipes: it may hold a token. */
void sg_fs_reply_free(fs_reply *reply);
/* True for http://localhost, 127.x.x.x and [::1]. */
bool sg_fs_url_loopback(const char *url);

/* --- auth.c --- */

typedef enum fs_auth_kind {
    FS_AUTH_EMULATOR,
    FS_AUTH_CALLBACK,
    FS_AUTH_SERVICE_ACCOUNT,
    FS_AUTH_USER,
    FS_AUTH_METADATA
} fs_auth_kind;

typedef struct fs_token {
    atomic_int references;
    int64_t renew_at_ns;
    int64_t expires_at_ns;
    char header[]; /* "Authorization: Bearer ..." */
} fs_token;

typedef struct fs_auth {
    fs_auth_kind kind;
    syncguard_firestore_token_fn callback;
    void *callback_context;
    char *token_uri;
    char *client; /* client_email or client_id */
    char *key_id;
    char *secret; /* private key (PEM), or client_secret */
    char *refresh_token;
    pthread_mutex_t mutex; /* guards token and renewing */
    syncguard_gate gate;   /* one renewal at a time */
    bool ready;            /* mutex and gate are initialised */
    fs_token *token;
    bool renewing;       /* somebody is on the way to a new one */
    int64_t retry_at_ns; /* after a failed early renewal */
} fs_auth;

syncguard_status sg_fs_auth_init(fs_auth *auth, const syncguard_firestore_options *options,
                                 bool emulator, syncguard_error *err);
void sg_fs_auth_destroy(fs_auth *auth);
syncguard_status sg_fs_auth_after_fork(fs_auth *auth, syncguard_error *err);
/* A token that is good now; the caller gives it back with sg_fs_token_drop. */
syncguard_status sg_fs_auth_get(fs_auth *auth, fs_pool *pool, const syncguard_limits *limits,
                                fs_token **out, syncguard_error *err);
/* The server refused this token: the next one is new. */
void sg_fs_auth_refused(fs_auth *auth, const fs_token *token);
void sg_fs_token_drop(fs_token *token);
/* Wipes and frees a text; NULL is ignored. */
void sg_fs_wipe(char *text);

/* --- jwt.c --- */

/* A signed assertion for the token endpoint, good from now_s for one hour. */
syncguard_status sg_fs_jwt(const char *client_email, const char *key_id, const char *private_key,
                           const char *audience, int64_t now_s, char **out, syncguard_error *err);

/* --- clock.c --- */

typedef struct fs_clock {
    pthread_mutex_t mutex;
    uint64_t samples;
    int64_t base_ns;   /* server's time since 1970 less our boot clock */
    int64_t error_ns;  /* at taken_ns */
    int64_t taken_ns;  /* boot clock */
    int64_t logged_ns; /* 0: never */
    int64_t asked_ns;  /* likewise */
} fs_clock;

/* Both clocks, read together. What was decided by a reading is guarded by the same reading: the
 * wall clock may have been set since. */
typedef struct fs_instant {
    int64_t boot_ns; /* just before the wall clock was read */
    int64_t span_ns; /* what reading it took */
    int64_t wall_ns;
    int64_t wall_ms;
} fs_instant;

fs_instant sg_fs_now(void);
syncguard_status sg_fs_clock_init(fs_clock *clock, syncguard_error *err);
void sg_fs_clock_destroy(fs_clock *clock);
/* The server said server_ns (since 1970), give or take slack_ns, between two boot times. */
void sg_fs_clock_sample(fs_clock *clock, int64_t server_ns, int64_t slack_ns, int64_t start_ns,
                        int64_t end_ns);
/* How far off the wall clock was at that instant. False before the first sample. */
bool sg_fs_clock_read(fs_clock *clock, const fs_instant *at, syncguard_firestore_clock_info *info);
/* |offset| less its error bound, in microseconds; never negative. */
int64_t sg_fs_clock_certain_us(const syncguard_firestore_clock_info *info);
typedef enum fs_guarded {
    FS_GUARD_VERDICT, /* somebody's lock is dead: no clock that is wrong may say so */
    FS_GUARD_EXPIRY   /* of a lock of ours: a clock that is behind makes it too early */
} fs_guarded;

/* Warns at most once a minute; ServiceUnavailable from limit_ms on (0: never). */
syncguard_status sg_fs_clock_guard(fs_clock *clock, const syncguard_backend *backend,
                                   int64_t limit_ms, fs_guarded what, const fs_instant *at,
                                   syncguard_error *err);
/* Whether a request may be spent on a sample: not more often than the heartbeat tries again. */
bool sg_fs_clock_may_ask(fs_clock *clock);
/* RFC 3339 to nanoseconds since 1970. */
bool sg_fs_time_parse(const char *text, int64_t *ns);

/* --- names.c --- */

typedef struct fs_names {
    char *documents;     /* projects/P/databases/D/documents */
    char *collection;    /* path below documents */
    char *fences;        /* likewise */
    char *collection_id; /* last segment of collection, within it */
    char *url_batch_get;
    char *url_commit;
    char *url_batch_write;
    char *url_query;     /* its parent is that of the collection */
    char *url_query_all; /* its parent is the database */
} fs_names;

#define FS_PATH_BYTES 6144 /* Firestore's limit on a whole document name */

syncguard_status sg_fs_names_init(fs_names *names, const syncguard_firestore_options *options,
                                  const char *base_url, syncguard_error *err);
void sg_fs_names_destroy(fs_names *names);
/* Full names of the documents for a key. fence may be NULL. Buffers of FS_PATH_BYTES. */
syncguard_status sg_fs_names_of(const fs_names *names, const char *key, size_t length, char *lock,
                                char *fence, syncguard_error *err);

/* --- document.c --- */

/* A lock document of an answer. Pointers belong to the answer's JSON. A field of the record that
 * cannot be read is "" or 0; which operation needs which is told in ADR 0043. */
typedef struct fs_lock {
    const char *name;
    const char *update_time;
    bool has_expiry; /* it could be read: enough to tell live from dead */
    bool complete;   /* lock id, key and fence too: enough to show */
    bool no_memory;  /* not complete because of that */
    syncguard_record record;
} fs_lock;

void sg_fs_lock_decode(const json_t *document, fs_lock *lock);
/* The value of a counter document; Internal if it is none. */
syncguard_status sg_fs_fence_decode(const json_t *document, int64_t *value, syncguard_error *err);
/* Nest without checks: value and container are taken over, NULL anywhere makes NULL of the whole.
 */
json_t *sg_fs_with(json_t *object, const char *name, json_t *value);
json_t *sg_fs_and(json_t *array, json_t *value);
/* Writes for a commit. update_time NULL: the document must not exist. NULL without memory. */
json_t *sg_fs_write_lock(const char *name, const char *update_time, const syncguard_record *record);
json_t *sg_fs_write_fence(const char *name, const char *update_time, const char *fence,
                          const char *key);
json_t *sg_fs_write_expiry(const char *name, const char *update_time, int64_t expires_at_ms);
json_t *sg_fs_write_delete(const char *name, const char *update_time);
json_t *sg_fs_query_id(const char *collection_id, const char *lock_id);
/* A page of the collection by document name, after `after` unless that is NULL. */
json_t *sg_fs_query_page(const char *collection_id, const char *after, int limit);
/* A page of what is below the collection of this full name, sub-collections included; likewise. */
json_t *sg_fs_query_below(const char *collection, const char *after, int limit);
/* JSON as text, for syncguard_free; NULL without memory or for NULL. */
char *sg_fs_dump(const json_t *json);

/* --- memo.c --- */

typedef struct fs_known {
    char key[SYNCGUARD_KEY_SIZE];
    size_t key_length;
    char update_time[FS_TIME_SIZE];
    int64_t expires_at_ms;
} fs_known;

typedef struct fs_memo {
    pthread_mutex_t mutex;
    struct fs_memo_entry **buckets;
    size_t bucket_count; /* power of two */
    size_t count;
    size_t hand; /* next bucket to look for expired entries in */
} fs_memo;

syncguard_status sg_fs_memo_init(fs_memo *memo, syncguard_error *err);
void sg_fs_memo_destroy(fs_memo *memo);
/* In a forked child: locks belong to the parent. */
syncguard_status sg_fs_memo_forget(fs_memo *memo, syncguard_error *err);
/* Without memory, or full, it is simply not known later. */
void sg_fs_memo_put(fs_memo *memo, const char *lock_id, const char *key, size_t key_length,
                    const char *update_time, int64_t expires_at_ms, int64_t now_ms);
bool sg_fs_memo_get(fs_memo *memo, const char *lock_id, fs_known *known);
void sg_fs_memo_drop(fs_memo *memo, const char *lock_id);
size_t sg_fs_memo_count(fs_memo *memo);

/* --- rest.c --- */

typedef struct fs_backend {
    syncguard_backend base;
    fs_pool pool;
    fs_auth auth;
    fs_clock clock;
    fs_memo memo;
    fs_names names;
    pid_t pid; /* of the process whose connections these are */
    int connections;
    int64_t max_clock_drift_ms;
} fs_backend;

typedef enum fs_call { FS_BATCH_GET, FS_COMMIT, FS_BATCH_WRITE, FS_QUERY, FS_QUERY_ALL } fs_call;

typedef struct fs_answer {
    json_t *json;
    bool again;     /* failure: a conflict or a broken connection, worth another attempt */
    bool conflict;  /* failure: a precondition of the commit did not hold, nothing was applied */
    bool ambiguous; /* the call may have been applied although no success was heard */
} fs_answer;

/* Sends body (stolen; NULL: out of memory). OK: answer->json is an array for reads, else an
 * object. The caller ends with sg_fs_answer_free in every case. */
syncguard_status sg_fs_call(fs_backend *backend, fs_call call, json_t *body,
                            const syncguard_limits *limits, fs_answer *answer,
                            syncguard_error *err);
void sg_fs_answer_free(fs_answer *answer);
/* Body of a commit or batchWrite of these writes (an array, stolen; NULL is lack of memory). */
json_t *sg_fs_writes(json_t *list);
json_t *sg_fs_documents(const char *first, const char *second);
/* The document with this name in a batchGet's answer: OK (*document may be NULL: missing) or
 * Internal if the answer does not say. */
syncguard_status sg_fs_pick(const fs_answer *answer, const char *name, const json_t **document,
                            syncguard_error *err);
/* updateTime of write number index; NULL if it is not told. */
const char *sg_fs_write_time(const fs_answer *answer, size_t index);
/* Waits before attempt number `attempt` (from 1); OK, Aborted or NetworkTimeout. */
syncguard_status sg_fs_backoff(int attempt, const syncguard_limits *limits, syncguard_error *err);

/* --- acquire.c, change.c, ops.c, examine.c --- */

/* What a query by lock id found. */
typedef struct fs_findings {
    fs_lock live;    /* the single live one */
    size_t lives;    /* how many live ones there are */
    size_t matches;  /* documents that name the id */
    bool unreadable; /* one of them has no readable expiry: nobody can tell how many are live */
    json_t *dead;    /* writes that delete expired duplicates; NULL if there are none */
} fs_findings;

/* found->dead is the caller's to drop. Pointers belong to the answer. */
void sg_fs_weigh(const fs_answer *answer, const char *lock_id, int64_t now_ms, fs_findings *found);
void sg_fs_warn_duplicates(const fs_backend *backend, const fs_findings *found);
/* Whether to make another attempt after a failure. The pause counts against limits; if it does
 * not come to its end, *status tells why. */
bool sg_fs_again(const fs_backend *backend, const fs_answer *answer, int *attempt,
                 const syncguard_limits *limits, syncguard_status *status, syncguard_error *err);
/* Internal, or OutOfMemory if lock (may be NULL) could not be read for that. */
syncguard_status sg_fs_unreadable(const fs_lock *lock, syncguard_error *err);
syncguard_status sg_fs_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                               syncguard_error *err);
syncguard_status sg_fs_release(syncguard_backend *backend, syncguard_release_op *op,
                               syncguard_error *err);
syncguard_status sg_fs_extend(syncguard_backend *backend, syncguard_extend_op *op,
                              syncguard_error *err);
syncguard_status sg_fs_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                   size_t count, const syncguard_limits *limits,
                                   syncguard_error *err);

extern const syncguard_backend_ops sg_fs_ops;

/* Frees everything but the base and the struct itself. */
void sg_fs_dismantle(fs_backend *backend);

/* One read within limits, sent again when its connection breaks. Steals body; ends with a check
 * of limits. The caller ends with sg_fs_answer_free in every case. */
syncguard_status sg_fs_read(fs_backend *backend, fs_call call, json_t *body,
                            const syncguard_limits *limits, fs_answer *answer,
                            syncguard_error *err);
syncguard_status sg_fs_list(syncguard_backend *backend, const syncguard_limits *limits,
                            syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_fs_examine(syncguard_backend *backend, const syncguard_limits *limits,
                               syncguard_finding_fn fn, void *context, syncguard_error *err);
syncguard_status sg_fs_survey(fs_backend *backend, const syncguard_limits *limits,
                              syncguard_finding_fn fn, void *context, syncguard_error *err);

#endif
