/*
 * The locks that this process acquired, by lock id: key, updateTime and expiry of their documents,
 * so that release and extend need no query.
 *
 * An entry is only a guess about the store: every use of it is a commit that fails if the guess is
 * wrong. So entries may be missing.
 */
#ifndef SG_FIRESTORE_CACHE_H
#define SG_FIRESTORE_CACHE_H

#include "record.h"
#include "syncguard/sys/backend.h"

typedef struct sg_firestore_cached {
    char key[SYNCGUARD_KEY_SIZE];
    size_t key_length;
    char update_time[SG_FIRESTORE_TIME_SIZE];
    int64_t expires_at_ms;
} sg_firestore_cached;

typedef struct sg_firestore_cache {
    pthread_mutex_t mutex; /* guards what follows */
    struct sg_firestore_cache_entry **buckets;
    size_t count;
    size_t next_swept; /* bucket */
} sg_firestore_cache;

syncguard_status sg_firestore_cache_init(sg_firestore_cache *cache, syncguard_error *err);
void sg_firestore_cache_destroy(sg_firestore_cache *cache);
/* In a forked child: empties the cache, because the locks belong to the parent. */
syncguard_status sg_firestore_cache_after_fork(sg_firestore_cache *cache, syncguard_error *err);
/* Adds or replaces an entry. Does nothing if memory runs out, the cache is full, or update_time is
 * too long. */
void sg_firestore_cache_put(sg_firestore_cache *cache, const char *lock_id, const char *key,
                            size_t key_length, const char *update_time, int64_t expires_at_ms,
                            int64_t now_ms);
bool sg_firestore_cache_get(sg_firestore_cache *cache, const char *lock_id,
                            sg_firestore_cached *cached);
void sg_firestore_cache_drop(sg_firestore_cache *cache, const char *lock_id);

#endif
