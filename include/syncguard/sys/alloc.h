/*
 * Memory of the library: every allocation of the core and the backends goes through
 * these functions, so that one hook can replace them and a test can make each one fail.
 */
#ifndef SYNCGUARD_SYS_ALLOC_H
#define SYNCGUARD_SYS_ALLOC_H

#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As malloc and realloc, through the allocator hook. */
SYNCGUARD_API void *syncguard_malloc(size_t size);
/* Zeroed; checks count * size for overflow. */
SYNCGUARD_API void *syncguard_calloc(size_t count, size_t size);
SYNCGUARD_API void *syncguard_realloc(void *block, size_t size);
/* Keeps errno. NULL is ignored. */
SYNCGUARD_API void syncguard_free(void *block);
/* Overwrites a NUL-terminated text that held a secret, and frees it. NULL is ignored. */
SYNCGUARD_API void syncguard_free_secret(char *text);
/* A copy of text; NULL if text is NULL or memory is short. */
SYNCGUARD_API char *syncguard_strdup(const char *text);
SYNCGUARD_API char *syncguard_strndup(const char *text, size_t length);

#ifdef __cplusplus
}
#endif

#endif
