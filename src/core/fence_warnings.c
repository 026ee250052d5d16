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

static struct sg_fence_warning *fence_warnings_add(sg_fence_warnings *warnings)
{
    struct sg_fence_warning *warning = syncguard_calloc(1, sizeof *warning);
    if (warning != NULL) {
        warning->next = warnings->first;
        warnings->first = warning;
        warnings->count++;
    }
    return warning;
}

/* Returns the entry of a key. If the table is full, the entry of another key whose minute is over
 * is reused; NULL if there is none. Caller holds the mutex. */
static struct sg_fence_warning *fence_warnings_find_or_add(sg_fence_warnings *warnings,
                                                           const char *hash, int64_t now)
{
    struct sg_fence_warning *warning = warnings->first, *over = NULL;
    while (warning != NULL && strcmp(warning->key_hash, hash) != 0) {
        if (now >= warning->next_ns)
            over = warning;
        warning = warning->next;
    }
    if (warning != NULL)
        return warning;
    if (over == NULL && warnings->count < KEYS_MAX)
        over = fence_warnings_add(warnings);
    if (over != NULL)
        memcpy(over->key_hash, hash, SYNCGUARD_HASH_SIZE);
    return over;
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
    struct sg_fence_warning *warning = fence_warnings_find_or_add(warnings, hash, now);
    bool due = warning != NULL && now >= warning->next_ns;
    if (due)
        warning->next_ns = now + PAUSE_NS;
    pthread_mutex_unlock(&warnings->mutex);
    if (due)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "the fence counter of key %s has passed %lld; it ends at %lld", hash,
                              (long long)SYNCGUARD_FENCE_WARN, (long long)SYNCGUARD_FENCE_MAX);
}
