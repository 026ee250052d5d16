/*
 * Memory of held locks (I-ACQ-11): what the library and a store's module have allocated for locks
 * that are held and renewed.
 *
 *     held_memory URL
 *
 * Exit 0 if a lock costs less than 1 KiB. Counts the bytes of live blocks, so that neither the
 * allocator's reserves nor the load of the machine play a part. What the client libraries allocate
 * for themselves is in the figures of the benchmark, which measures whole processes.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <syncguard.h>

#define WARM 200 /* connections, caches and tables are there after these */
#define LOCKS 1000
#define MOST_BYTES 1024

static atomic_llong live;

static void *held_memory_malloc(size_t size)
{
    void *block = malloc(size);
    atomic_fetch_add(&live, (long long)malloc_usable_size(block));
    return block;
}

static void *held_memory_realloc(void *block, size_t size)
{
    long long before = (long long)malloc_usable_size(block);
    void *moved = realloc(block, size);
    if (moved != NULL)
        atomic_fetch_add(&live, (long long)malloc_usable_size(moved) - before);
    return moved;
}

static void held_memory_free(void *block)
{
    atomic_fetch_sub(&live, (long long)malloc_usable_size(block));
    free(block);
}

static bool held_memory_acquire_locks(syncguard_backend *backend, int from, int count,
                                      syncguard_lock **locks)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_error err;
    options.ttl_ms = 600000;
    options.auto_extend = true;
    for (int i = from; i < from + count; i++) {
        char key[32];
        snprintf(key, sizeof key, "held-memory-%d", i);
        if (syncguard_lock_acquire(backend, key, &options, &locks[i], &err) != SYNCGUARD_OK) {
            fprintf(stderr, "acquire: %s\n", err.message);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static const syncguard_allocator counting = {held_memory_malloc, held_memory_realloc,
                                                 held_memory_free};
    static syncguard_lock *locks[WARM + LOCKS];
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    if (argc != 2)
        return 64;
    syncguard_allocator_set(&counting);
    options.timeout_ms = 60000;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(argv[1], &options, &backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "open: %s\n", err.message);
        return 1;
    }
    bool taken = held_memory_acquire_locks(backend, 0, WARM, locks);
    long long before = atomic_load(&live);
    taken = taken && held_memory_acquire_locks(backend, WARM, LOCKS, locks);
    long long each = (atomic_load(&live) - before) / LOCKS;
    for (int i = 0; i < WARM + LOCKS; i++)
        syncguard_lock_dispose(locks[i]);
    syncguard_close(backend);
    printf("%lld bytes for a held lock\n", each);
    return taken && each > 0 && each < MOST_BYTES ? 0 : 1;
}
