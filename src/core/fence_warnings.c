/* See fence_warnings.h. */
#include "fence_warnings.h"

#include <string.h>

#include "core.h"
#include "hash.h"

#define PAUSE_NS (60 * 1000 * SYNCGUARD_NS_PER_MS)
#define KEYS_MAX 1024

struct sg_fence_warning {
    struct sg_fence_warning *next;
    int64_t next_ns;
    char key_hash[SYNCGUARD_HASH_SIZE];
};

syncguard_status sg_fence_warnings_init(sg_fence_warnings *warnings, syncguard_error *err)
{
    return pthread_mutex_init(&warnings->mutex, NULL) == 0 ? SYNCGUARD_OK
                                                           : syncguard_fail_memory(err);
}

void sg_fence_warnings_destroy(sg_fence_warnings *warnings)
{
    while (warnings->first != NULL) {
        struct sg_fence_warning *warning = warnings->first;
        warnings->first = warning->next;
        syncguard_free(warning);
    }
    pthread_mutex_destroy(&warnings->mutex);
}

void sg_fence_warnings_forget(sg_fence_warnings *warnings)
{
    (void)pthread_mutex_init(&warnings->mutex, NULL);
}

/* A full table warns of no further keys: NULL. Caller holds the mutex. */
static struct sg_fence_warning *find_or_add(sg_fence_warnings *warnings, const char *hash)
{
    struct sg_fence_warning *warning = warnings->first;
    while (warning != NULL && strcmp(warning->key_hash, hash) != 0)
        warning = warning->next;
    if (warning != NULL || warnings->count >= KEYS_MAX)
        return warning;
    warning = syncguard_calloc(1, sizeof *warning);
    if (warning != NULL) {
        memcpy(warning->key_hash, hash, SYNCGUARD_HASH_SIZE);
        warning->next = warnings->first;
        warnings->first = warning;
        warnings->count++;
    }
    return warning;
}

void sg_fence_warnings_log(sg_fence_warnings *warnings, syncguard_backend *backend, const char *key,
                           size_t length)
{
    const struct syncguard_core *core = backend->core;
    char hash[SYNCGUARD_HASH_SIZE];
    int64_t now = syncguard_clock_ns();

    if (core->options.log == NULL || !sg_hash_text(core->hash_secret, key, length, hash))
        return;
    pthread_mutex_lock(&warnings->mutex);
    struct sg_fence_warning *warning = find_or_add(warnings, hash);
    bool due = warning != NULL && now >= warning->next_ns;
    if (due)
        warning->next_ns = now + PAUSE_NS;
    pthread_mutex_unlock(&warnings->mutex);
    if (due)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "the fence counter of key %s has passed %lld; it ends at %lld", hash,
                              (long long)SYNCGUARD_FENCE_WARN, (long long)SYNCGUARD_FENCE_MAX);
}
