/*
 * An allocator for the library that counts its blocks and can fail. Other things that can run out
 * (descriptors, the memory of another library) may count with it: they ask test_fails_now() too.
 */
#ifndef TEST_ALLOC_H
#define TEST_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Blocks that were allocated and not freed. */
extern atomic_long test_live_blocks;
/* Whether the allocations of the library fail; false where a test lets something else fail. */
extern atomic_bool test_alloc_fails;

/* Gives the library this allocator. */
void test_alloc_install(void);
/* Frees a block of the library, or one that a test has added to test_live_blocks. */
void test_alloc_free(void *block);

/* The after-th one from now fails, and if for_good all later ones too. */
void test_fail_arm(long after, bool for_good);
void test_fail_disarm(void);
/* Counts one; true if it has to fail. */
bool test_fails_now(void);
/* Failures since test_fail_arm. */
long test_failures(void);

#endif
