/* See test_alloc.h. */
#include "test_alloc.h"

#include <stdlib.h>

#include <syncguard.h>

atomic_long test_live_blocks;
atomic_bool test_alloc_fails = true;

static atomic_long countdown; /* until one fails; 0: none fails */
static atomic_bool fails_for_good;
static atomic_long failures;

void test_fail_arm(long after, bool for_good)
{
    atomic_store(&failures, 0);
    atomic_store(&fails_for_good, for_good);
    atomic_store(&countdown, after);
}

void test_fail_disarm(void)
{
    atomic_store(&countdown, 0);
}

long test_failures(void)
{
    return atomic_load(&failures);
}

/* Stops at 1 where all later ones fail too: nothing is written after test_fail_disarm(). */
bool test_fails_now(void)
{
    long last = atomic_load(&fails_for_good) ? 1 : 0;
    long left = atomic_load(&countdown);
    while (left > last && !atomic_compare_exchange_weak(&countdown, &left, left - 1))
        continue;
    if (left != 1)
        return false;
    atomic_fetch_add(&failures, 1);
    return true;
}

static void *failing_block_malloc(size_t size)
{
    void *block = atomic_load(&test_alloc_fails) && test_fails_now() ? NULL : malloc(size);
    if (block != NULL)
        atomic_fetch_add(&test_live_blocks, 1);
    return block;
}

static void *failing_block_realloc(void *block, size_t size)
{
    void *moved = atomic_load(&test_alloc_fails) && test_fails_now() ? NULL : realloc(block, size);
    if (block == NULL && moved != NULL)
        atomic_fetch_add(&test_live_blocks, 1);
    return moved;
}

void test_alloc_free(void *block)
{
    if (block != NULL)
        atomic_fetch_sub(&test_live_blocks, 1);
    free(block);
}

void test_alloc_install(void)
{
    static const syncguard_allocator allocator = {failing_block_malloc, failing_block_realloc,
                                                  test_alloc_free};
    syncguard_allocator_set(&allocator);
}
