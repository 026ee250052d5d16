/*
 * The allocator hook. One of the two pieces of mutable global state of the
 * library: it is set before anything else and only read afterwards, so it needs
 * no locking.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "syncguard/backend.h"
#include "syncguard/sys/alloc.h"

static syncguard_allocator hook = {malloc, realloc, free};

void syncguard_allocator_set(const syncguard_allocator *allocator)
{
    if (allocator != NULL && allocator->malloc_fn != NULL && allocator->realloc_fn != NULL &&
        allocator->free_fn != NULL)
        hook = *allocator;
}

/* Size 0 may legally give NULL, which callers would take for a lack of memory. */
void *syncguard_malloc(size_t size)
{
    return hook.malloc_fn(size != 0 ? size : 1);
}

void *syncguard_calloc(size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size)
        return NULL;
    void *block = syncguard_malloc(count * size);
    if (block != NULL)
        memset(block, 0, count * size);
    return block;
}

void *syncguard_realloc(void *block, size_t size)
{
    return hook.realloc_fn(block, size != 0 ? size : 1);
}

void syncguard_free(void *block)
{
    int saved = errno;
    if (block != NULL)
        hook.free_fn(block);
    errno = saved;
}

void syncguard_free_secret(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    syncguard_free(text);
}

char *syncguard_strdup(const char *text)
{
    return text != NULL ? syncguard_strndup(text, strlen(text)) : NULL;
}

char *syncguard_strndup(const char *text, size_t length)
{
    if (text == NULL)
        return NULL;
    length = strnlen(text, length);
    char *copy = syncguard_malloc(length + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}
