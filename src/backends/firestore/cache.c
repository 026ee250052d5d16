/*
 * See cache.h. A hash table. Entries are removed by a release, by a failed guess, and some time
 * after their expiry: each insertion searches two buckets for expired ones.
 *
 * Locking: cache->mutex guards everything and is a leaf.
 */
#include "cache.h"

#include <string.h>

/* A power of two. A chain of at most 256 entries costs little compared with a request. */
#define BUCKETS 4096
#define MAX_ENTRIES (1u << 20)

typedef struct sg_firestore_cache_entry {
    struct sg_firestore_cache_entry *next;
    int64_t expires_at_ms;
    uint16_t key_length;
    char lock_id[SYNCGUARD_LOCK_ID_CHARS];
    char update_time[SG_FIRESTORE_TIME_SIZE];
    char key[];
} sg_firestore_cache_entry;

syncguard_status sg_firestore_cache_init(sg_firestore_cache *cache, syncguard_error *err)
{
    memset(cache, 0, sizeof *cache);
    cache->buckets = syncguard_calloc(BUCKETS, sizeof(sg_firestore_cache_entry *));
    if (cache->buckets != NULL && pthread_mutex_init(&cache->mutex, NULL) == 0)
        return SYNCGUARD_OK;
    syncguard_free(cache->buckets);
    cache->buckets = NULL;
    return syncguard_fail_memory(err);
}

/* buckets may be NULL: a forked child may have had no memory for them. */
static void firestore_cache_free_entries(sg_firestore_cache *cache)
{
    for (size_t i = 0; cache->buckets != NULL && i < BUCKETS; i++) {
        sg_firestore_cache_entry *entry = cache->buckets[i];
        while (entry != NULL) {
            sg_firestore_cache_entry *next = entry->next;
            syncguard_free(entry);
            entry = next;
        }
    }
    syncguard_free(cache->buckets);
    cache->buckets = NULL;
}

void sg_firestore_cache_destroy(sg_firestore_cache *cache)
{
    firestore_cache_free_entries(cache);
    pthread_mutex_destroy(&cache->mutex);
}

syncguard_status sg_firestore_cache_after_fork(sg_firestore_cache *cache, syncguard_error *err)
{
    /* If a thread held the mutex when the process forked, the table may be half changed: then the
     * table is abandoned. */
    if (pthread_mutex_trylock(&cache->mutex) == 0) {
        firestore_cache_free_entries(cache);
        pthread_mutex_unlock(&cache->mutex);
    }
    return sg_firestore_cache_init(cache, err);
}

/* Lock ids are random: their first characters are a good hash. */
static sg_firestore_cache_entry **firestore_cache_bucket(const sg_firestore_cache *cache,
                                                         const char *lock_id)
{
    uint64_t bits;
    memcpy(&bits, lock_id, sizeof bits);
    bits *= UINT64_C(0x9E3779B97F4A7C15);
    return &cache->buckets[(bits >> 32) & (BUCKETS - 1)];
}

static sg_firestore_cache_entry **firestore_cache_find(const sg_firestore_cache *cache,
                                                       const char *lock_id)
{
    for (sg_firestore_cache_entry **at = firestore_cache_bucket(cache, lock_id); *at != NULL;
         at = &(*at)->next) {
        if (memcmp((*at)->lock_id, lock_id, SYNCGUARD_LOCK_ID_CHARS) == 0)
            return at;
    }
    return NULL;
}

static void firestore_cache_remove_at(sg_firestore_cache *cache, sg_firestore_cache_entry **at)
{
    sg_firestore_cache_entry *entry = *at;
    *at = entry->next;
    syncguard_free(entry);
    cache->count--;
}

static void firestore_cache_sweep(sg_firestore_cache *cache, int64_t now_ms)
{
    for (int i = 0; i < 2; i++) {
        sg_firestore_cache_entry **at = &cache->buckets[cache->next_swept];
        while (*at != NULL) {
            if (syncguard_is_live((*at)->expires_at_ms, now_ms))
                at = &(*at)->next;
            else
                firestore_cache_remove_at(cache, at);
        }
        cache->next_swept = (cache->next_swept + 1) % BUCKETS;
    }
}

/* NULL: full, or no memory. */
static sg_firestore_cache_entry *firestore_cache_add(sg_firestore_cache *cache, const char *lock_id,
                                                     const char *key, size_t key_length)
{
    if (cache->count >= MAX_ENTRIES)
        return NULL;
    sg_firestore_cache_entry *entry = syncguard_malloc(sizeof *entry + key_length + 1);
    if (entry == NULL)
        return NULL;
    memcpy(entry->lock_id, lock_id, sizeof entry->lock_id);
    memcpy(entry->key, key, key_length);
    entry->key[key_length] = '\0';
    entry->key_length = (uint16_t)key_length;
    sg_firestore_cache_entry **bucket = firestore_cache_bucket(cache, lock_id);
    entry->next = *bucket;
    *bucket = entry;
    cache->count++;
    return entry;
}

void sg_firestore_cache_put(sg_firestore_cache *cache, const char *lock_id, const char *key,
                            size_t key_length, const char *update_time, int64_t expires_at_ms,
                            int64_t now_ms)
{
    size_t time_size = strlen(update_time) + 1;
    if (time_size > SG_FIRESTORE_TIME_SIZE || key_length > SYNCGUARD_MAX_KEY_BYTES)
        return;
    pthread_mutex_lock(&cache->mutex);
    sg_firestore_cache_entry **at = firestore_cache_find(cache, lock_id);
    if (at == NULL)
        firestore_cache_sweep(cache, now_ms);
    sg_firestore_cache_entry *entry =
        at != NULL ? *at : firestore_cache_add(cache, lock_id, key, key_length);
    if (entry != NULL) {
        memcpy(entry->update_time, update_time, time_size);
        entry->expires_at_ms = expires_at_ms;
    }
    pthread_mutex_unlock(&cache->mutex);
}

bool sg_firestore_cache_get(sg_firestore_cache *cache, const char *lock_id,
                            sg_firestore_cached *cached)
{
    pthread_mutex_lock(&cache->mutex);
    sg_firestore_cache_entry **at = firestore_cache_find(cache, lock_id);
    if (at != NULL) {
        const sg_firestore_cache_entry *entry = *at;
        memcpy(cached->key, entry->key, (size_t)entry->key_length + 1);
        cached->key_length = entry->key_length;
        memcpy(cached->update_time, entry->update_time, sizeof cached->update_time);
        cached->expires_at_ms = entry->expires_at_ms;
    }
    pthread_mutex_unlock(&cache->mutex);
    return at != NULL;
}

void sg_firestore_cache_drop(sg_firestore_cache *cache, const char *lock_id)
{
    pthread_mutex_lock(&cache->mutex);
    sg_firestore_cache_entry **at = firestore_cache_find(cache, lock_id);
    if (at != NULL)
        firestore_cache_remove_at(cache, at);
    pthread_mutex_unlock(&cache->mutex);
}
