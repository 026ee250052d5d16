/* The allocator of the library. */
#ifndef SYNCGUARD_ALLOCATOR_H
#define SYNCGUARD_ALLOCATOR_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Replaces the allocator of the whole library. Call syncguard_allocator_set before any other
 * function, and at most once; all three functions must be given and be thread-safe. Client
 * libraries (SQLite, libpq, libcurl) keep their own allocators.
 */
typedef struct syncguard_allocator {
    void *(*malloc_fn)(size_t size);
    void *(*realloc_fn)(void *block, size_t size);
    void (*free_fn)(void *block);
} syncguard_allocator;
SYNCGUARD_API void syncguard_allocator_set(const syncguard_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
