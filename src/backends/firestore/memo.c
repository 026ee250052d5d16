/*
 * What this process knows of the locks that it acquired: document and updateTime, so that release
 * and extend need no query. A hash table by lock id.
 *
 * An entry is only ever a guess about the store: every use of it is a commit that fails if the
 * guess is wrong. So entries may be missing at will. They go with a release, with a failed guess,
 * and some time after their expiry: each insertion looks through two buckets for expired ones.
 *
 * Locking: memo->mutex guards everything.
 */
#include <string.h>

#include "internal.h"

#define FIRST_BUCKETS 64
#define MAX_ENTRIES (1u << 20)

typedef struct fs_memo_entry {
    struct fs_memo_entry *next;
    int64_t expires_at_ms;
    uint16_t key_length;
    uint8_t time_room; /* bytes for the updateTime, NUL included */
    char lock_id[SYNCGUARD_LOCK_ID_CHARS];
    char text[]; /* updateTime in its room, then the key, each with its NUL */
} fs_memo_entry;

syncguard_status sg_fs_memo_init(fs_memo *memo, syncguard_error *err)
{
    memset(memo, 0, sizeof *memo);
    if (pthread_mutex_init(&memo->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

static void drop_all(fs_memo *memo)
{
    for (size_t i = 0; i < memo->bucket_count; i++) {
        fs_memo_entry *entry = memo->buckets[i];
        while (entry) {
            fs_memo_entry *next = entry->next;
            syncguard_free(entry);
            entry = next;
        }
    }
    syncguard_free(memo->buckets);
    memo->buckets = NULL;
    memo->bucket_count = memo->count = memo->hand = 0;
}

void sg_fs_memo_destroy(fs_memo *memo)
{
    drop_all(memo);
    pthread_mutex_destroy(&memo->mutex);
}

syncguard_status sg_fs_memo_forget(fs_memo *memo, syncguard_error *err)
{
    /* A thread that was changing the table when the process forked has its mutex still: then the
     * table is left alone. */
    if (pthread_mutex_trylock(&memo->mutex) == 0) {
        drop_all(memo);
        pthread_mutex_unlock(&memo->mutex);
    }
    return sg_fs_memo_init(memo, err);
}

/* Lock ids are random already: their first characters are as good a hash as any. */
static size_t bucket_of(const fs_memo *memo, const char *lock_id)
{
    uint64_t bits;

    memcpy(&bits, lock_id, sizeof bits);
    bits *= UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(bits >> 32) & (memo->bucket_count - 1);
}

static fs_memo_entry **find(const fs_memo *memo, const char *lock_id)
{
    fs_memo_entry **at;

    if (memo->bucket_count == 0)
        return NULL;
    for (at = &memo->buckets[bucket_of(memo, lock_id)]; *at; at = &(*at)->next) {
        if (memcmp((*at)->lock_id, lock_id, SYNCGUARD_LOCK_ID_CHARS) == 0)
            return at;
    }
    return NULL;
}

static void remove_at(fs_memo *memo, fs_memo_entry **at)
{
    fs_memo_entry *entry = *at;

    *at = entry->next;
    syncguard_free(entry);
    memo->count--;
}

static bool grow(fs_memo *memo)
{
    fs_memo old = *memo;
    size_t wanted = old.bucket_count ? old.bucket_count * 2 : FIRST_BUCKETS;
    fs_memo_entry **buckets = syncguard_calloc(wanted, sizeof(fs_memo_entry *));

    if (!buckets)
        return old.bucket_count != 0;
    memo->buckets = buckets;
    memo->bucket_count = wanted;
    memo->hand = 0;
    for (size_t i = 0; i < old.bucket_count; i++) {
        fs_memo_entry *entry = old.buckets[i];
        while (entry) {
            fs_memo_entry *next = entry->next;
            size_t bucket = bucket_of(memo, entry->lock_id);
            entry->next = buckets[bucket];
            buckets[bucket] = entry;
            entry = next;
        }
    }
    syncguard_free(old.buckets);
    return true;
}

static void sweep(fs_memo *memo, int64_t now_ms)
{
    for (int i = 0; i < 2 && memo->bucket_count; i++) {
        fs_memo_entry **at = &memo->buckets[memo->hand];
        while (*at) {
            if (syncguard_is_live((*at)->expires_at_ms, now_ms))
                at = &(*at)->next;
            else
                remove_at(memo, at);
        }
        memo->hand = (memo->hand + 1) & (memo->bucket_count - 1);
    }
}

static fs_memo_entry *make_entry(const char *lock_id, const char *key, size_t key_length,
                                 size_t time_room)
{
    fs_memo_entry *entry = syncguard_malloc(sizeof *entry + time_room + key_length + 1);

    if (!entry)
        return NULL;
    memcpy(entry->lock_id, lock_id, sizeof entry->lock_id);
    memcpy(entry->text + time_room, key, key_length);
    entry->text[time_room + key_length] = '\0';
    entry->key_length = (uint16_t)key_length;
    entry->time_room = (uint8_t)time_room;
    return entry;
}

void sg_fs_memo_put(fs_memo *memo, const char *lock_id, const char *key, size_t key_length,
                    const char *update_time, int64_t expires_at_ms, int64_t now_ms)
{
    size_t time_room = strlen(update_time) + 1;
    fs_memo_entry **at;
    fs_memo_entry *entry;

    if (time_room > FS_TIME_SIZE || key_length > SYNCGUARD_MAX_KEY_BYTES)
        return;
    pthread_mutex_lock(&memo->mutex);
    at = find(memo, lock_id);
    /* Times of one server are equally long, as good as always. */
    if (at && (*at)->time_room < time_room) {
        remove_at(memo, at);
        at = NULL;
    }
    if (at) {
        entry = *at;
        goto fill;
    }
    sweep(memo, now_ms);
    if (memo->count >= MAX_ENTRIES || (memo->count >= memo->bucket_count && !grow(memo)))
        goto out;
    entry = make_entry(lock_id, key, key_length, time_room);
    if (!entry)
        goto out;
    at = &memo->buckets[bucket_of(memo, lock_id)];
    entry->next = *at;
    *at = entry;
    memo->count++;

fill:
    memcpy(entry->text, update_time, time_room);
    entry->expires_at_ms = expires_at_ms;

out:
    pthread_mutex_unlock(&memo->mutex);
}

bool sg_fs_memo_get(fs_memo *memo, const char *lock_id, fs_known *known)
{
    fs_memo_entry **at;

    pthread_mutex_lock(&memo->mutex);
    at = find(memo, lock_id);
    if (at) {
        const fs_memo_entry *entry = *at;
        memcpy(known->key, entry->text + entry->time_room, (size_t)entry->key_length + 1);
        known->key_length = entry->key_length;
        memcpy(known->update_time, entry->text, entry->time_room);
        known->expires_at_ms = entry->expires_at_ms;
    }
    pthread_mutex_unlock(&memo->mutex);
    return at != NULL;
}

void sg_fs_memo_drop(fs_memo *memo, const char *lock_id)
{
    fs_memo_entry **at;

    pthread_mutex_lock(&memo->mutex);
    at = find(memo, lock_id);
    if (at)
        remove_at(memo, at);
    pthread_mutex_unlock(&memo->mutex);
}

size_t sg_fs_memo_count(fs_memo *memo)
{
    size_t count;

    pthread_mutex_lock(&memo->mutex);
    count = memo->count;
    pthread_mutex_unlock(&memo->mutex);
    return count;
}
