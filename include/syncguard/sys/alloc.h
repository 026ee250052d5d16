/*
 * Memory of the library: every allocation of core and backends goes through
 * these, so that one hook replaces them and a test can fail each in turn.
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
/* Copies; NULL text gives NULL, as does lack of memory. */
SYNCGUARD_API char *syncguard_strdup(const char *text);
SYNCGUARD_API char *syncguard_strndup(const char *text, size_t length);

#ifdef __cplusplus
}
#endif

#endif
