/*
 * The pool of HTTP handles. A gate bounds the handles in use; of the idle ones the one that was
 * returned last is taken, so that the most recently used connection is used again.
 *
 * libcurl's threaded resolver is joined when a transfer is removed. A transfer that is given up
 * while a name is being resolved therefore goes, with its handle, to a thread that waits for it. If
 * there are too many of those, only idle handles are used: they may have a connection.
 *
 * Locking: pool->mutex guards the list and is a leaf. A handle in use belongs to its caller. A
 * forked child walks the list without the mutex, so the user of a handle must not change its links.
 */
#include "pool.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "syncguard/sys/environment.h"

/* libcurl is initialized once per process; that is the only state of this file. */
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void firestore_pool_init_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static sg_firestore_handle *firestore_handle_of(syncguard_link *link)
{
    return SYNCGUARD_LINKED(link, sg_firestore_handle, link);
}

static void firestore_pool_drop_holder(atomic_int *holders)
{
    if (holders != NULL && atomic_fetch_sub(holders, 1) == 1)
        syncguard_free(holders);
}

syncguard_status sg_firestore_fail_descriptors(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EMFILE",
                          "no file descriptor is left for a connection");
}

bool sg_firestore_out_of_descriptors(void)
{
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) != 0)
        return errno == EMFILE || errno == ENFILE;
    (void)close(pair[0]);
    (void)close(pair[1]);
    return false;
}

static sg_firestore_handle *firestore_pool_last_returned(const sg_firestore_pool *pool)
{
    sg_firestore_handle *last = NULL;
    for (syncguard_link *link = pool->handles.first; link != NULL; link = link->next) {
        sg_firestore_handle *handle = firestore_handle_of(link);
        if (!handle->in_use && (last == NULL || handle->returned > last->returned))
            last = handle;
    }
    return last;
}

/* A handle whose descriptors the program has closed is left as it is: libcurl would close, or write
 * to, the files that have their numbers now. */
static sg_firestore_handle *firestore_pool_find_idle(sg_firestore_pool *pool)
{
    sg_firestore_handle *handle = firestore_pool_last_returned(pool);
    while (handle != NULL && !sg_firestore_handle_intact(handle)) {
        syncguard_links_remove(&pool->handles, &handle->link);
        handle = firestore_pool_last_returned(pool);
    }
    return handle;
}

/* Handles are created under the mutex, one at a time: the creation recognizes libcurl's socket pair
 * by the effect of a wake-up. */
static syncguard_status firestore_pool_take(sg_firestore_pool *pool, sg_firestore_handle **out,
                                            syncguard_error *err)
{
    bool may_create = atomic_load(pool->holders) <= SG_FIRESTORE_MAX_ABANDONED;
    pthread_mutex_lock(&pool->mutex);
    *out = firestore_pool_find_idle(pool);
    if (*out == NULL && may_create) {
        *out = sg_firestore_handle_create(&pool->trust);
        if (*out != NULL)
            syncguard_links_append(&pool->handles, &(*out)->link);
    }
    if (*out != NULL)
        (*out)->in_use = true;
    pthread_mutex_unlock(&pool->mutex);
    if (*out != NULL)
        return SYNCGUARD_OK;
    if (!may_create)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "CURLE_6",
                              "the resolver has not answered %d earlier requests",
                              SG_FIRESTORE_MAX_ABANDONED);
    return sg_firestore_out_of_descriptors() ? sg_firestore_fail_descriptors(err)
                                             : syncguard_fail_memory(err);
}

syncguard_status sg_firestore_pool_get(sg_firestore_pool *pool, const syncguard_limits *limits,
                                       sg_firestore_handle **out, syncguard_error *err)
{
    syncguard_status status = syncguard_gate_enter(&pool->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = firestore_pool_take(pool, out, err);
    if (status != SYNCGUARD_OK)
        syncguard_gate_leave(&pool->gate);
    return status;
}

void sg_firestore_pool_put(sg_firestore_pool *pool, sg_firestore_handle *handle)
{
    sg_firestore_handle_forget_closed(handle);
    pthread_mutex_lock(&pool->mutex);
    handle->returned = ++pool->returns;
    handle->in_use = false;
    pthread_mutex_unlock(&pool->mutex);
    syncguard_gate_leave(&pool->gate);
}

/* Waits for the resolver in place of the caller. */
static void *firestore_pool_reap_handle(void *argument)
{
    sg_firestore_handle *handle = argument;
    atomic_int *holders = handle->holders;
    (void)curl_multi_remove_handle(handle->multi, handle->easy);
    sg_firestore_handle_free(handle);
    firestore_pool_drop_holder(holders);
    return NULL;
}

void sg_firestore_pool_abandon(sg_firestore_pool *pool, sg_firestore_handle *handle)
{
    pthread_mutex_lock(&pool->mutex);
    syncguard_links_remove(&pool->handles, &handle->link);
    pthread_mutex_unlock(&pool->mutex);
    handle->reply = NULL;
    handle->holders = pool->holders;
    atomic_fetch_add(pool->holders, 1);
    pthread_t thread;
    /* Without a thread the handle is lost: better than a caller that waits past its deadline. */
    if (syncguard_thread_start(&thread, firestore_pool_reap_handle, handle) == 0)
        pthread_detach(thread);
    else
        firestore_pool_drop_holder(pool->holders);
    syncguard_gate_leave(&pool->gate);
}

/* ---- opening, closing, forking ---- */

/* The certificates that libcurl would trust by itself. NULL: libcurl must load them. */
static X509_STORE *firestore_pool_load_trust(const char *ca_file)
{
    const curl_version_info_data *about = curl_version_info(CURLVERSION_NOW);
    char ours[32];
    const char *bundle = ca_file;
    (void)snprintf(ours, sizeof ours, "OpenSSL/%d.", (int)(OPENSSL_VERSION_NUMBER >> 28));
    if (about->ssl_version == NULL || strncmp(about->ssl_version, ours, strlen(ours)) != 0)
        return NULL;
    const char *folder = NULL;
    if (ca_file == NULL) {
        bundle = about->cainfo;
        folder = about->capath;
    }
    X509_STORE *store = X509_STORE_new();
    if (store != NULL && (bundle != NULL || folder != NULL) &&
        X509_STORE_load_locations(store, bundle, folder) == 1)
        return store;
    X509_STORE_free(store);
    return NULL;
}

/* Also for a pool whose initialization failed. */
static void firestore_pool_free_settings(sg_firestore_pool *pool)
{
    X509_STORE_free(pool->trust.store);
    syncguard_free(pool->trust.ca_file);
    firestore_pool_drop_holder(pool->holders);
    memset(&pool->trust, 0, sizeof pool->trust);
    pool->holders = NULL;
}

static syncguard_status firestore_pool_init_locks(sg_firestore_pool *pool, syncguard_error *err)
{
    syncguard_status status = syncguard_gate_init(&pool->gate, pool->size, err);
    if (status == SYNCGUARD_OK && pthread_mutex_init(&pool->mutex, NULL) != 0) {
        syncguard_gate_destroy(&pool->gate);
        status = syncguard_fail_memory(err);
    }
    return status;
}

/* Reading a pipe would block. */
static bool firestore_ca_file_is_readable(const char *path)
{
    struct stat about;
    return access(path, R_OK) == 0 && stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

syncguard_status sg_firestore_pool_init(sg_firestore_pool *pool, int size, const char *ca_file,
                                        bool tls, syncguard_error *err)
{
    /* libcurl would append the keys of its connections to that file. */
    syncguard_status status = syncguard_environment_refuse("SSLKEYLOGFILE", err);
    memset(pool, 0, sizeof *pool);
    pool->size = size;
    if (status != SYNCGUARD_OK)
        return status;
    pthread_once(&curl_once, firestore_pool_init_curl);
    if (ca_file != NULL && !firestore_ca_file_is_readable(ca_file))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the file given by option ca_file cannot be read");
    pool->trust.ca_file = syncguard_strdup(ca_file);
    pool->holders = syncguard_malloc(sizeof *pool->holders);
    if (pool->holders != NULL)
        atomic_init(pool->holders, 1);
    if (pool->holders == NULL || (ca_file != NULL && pool->trust.ca_file == NULL))
        status = syncguard_fail_memory(err);
    if (status == SYNCGUARD_OK)
        status = firestore_pool_init_locks(pool, err);
    if (status == SYNCGUARD_OK && tls)
        pool->trust.store = firestore_pool_load_trust(ca_file);
    if (status != SYNCGUARD_OK)
        firestore_pool_free_settings(pool);
    return status;
}

void sg_firestore_pool_destroy(sg_firestore_pool *pool)
{
    while (pool->handles.first != NULL) {
        sg_firestore_handle *handle = firestore_handle_of(syncguard_links_pop(&pool->handles));
        if (sg_firestore_handle_intact(handle))
            sg_firestore_handle_free(handle);
    }
    pthread_mutex_destroy(&pool->mutex);
    syncguard_gate_destroy(&pool->gate);
    firestore_pool_free_settings(pool);
}

syncguard_status sg_firestore_pool_after_fork(sg_firestore_pool *pool, syncguard_error *err)
{
    /* libcurl would write to connections that the parent uses, and may have been in the middle of
     * anything when the process forked: its handles are left alone for good. */
    for (syncguard_link *link = pool->handles.first; link != NULL; link = link->next) {
        sg_firestore_handle *handle = firestore_handle_of(link);
        for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++) {
            syncguard_fd_close_inherited(handle->sockets[i].fd, handle->sockets[i].identity);
            handle->sockets[i].fd = -1;
        }
    }
    pool->handles = (syncguard_links){NULL, NULL};
    /* The threads of abandoned transfers are the parent's. */
    atomic_store(pool->holders, 1);
    return firestore_pool_init_locks(pool, err);
}
