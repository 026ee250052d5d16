/*
 * A binary heap of what is due at a time, the earliest first. What is in it embeds an
 * sg_heap_entry, which knows its place, so that it can be removed.
 *
 * Memory is reserved beforehand: a push cannot fail. A child forked while another thread changes
 * the heap may free it, but not use it.
 */
#ifndef SG_UTIL_HEAP_H
#define SG_UTIL_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SG_HEAP_OUTSIDE SIZE_MAX

typedef struct sg_heap_entry {
    int64_t due_ns;
    size_t index; /* SG_HEAP_OUTSIDE: in no heap */
} sg_heap_entry;

/* A heap of zeros is empty. */
typedef struct sg_heap {
    sg_heap_entry **entries;
    size_t count;
    size_t capacity;
} sg_heap;

static inline sg_heap_entry *sg_heap_first(const sg_heap *heap)
{
    return heap->count > 0 ? heap->entries[0] : NULL;
}

static inline void *sg_heap_entry_owner(sg_heap_entry *entry, size_t offset)
{
    return entry != NULL ? (char *)entry - offset : NULL;
}

/* What embeds the entry as the given member; NULL for NULL. */
#define SG_HEAP_OWNER(entry, type, member)                                                         \
    ((type *)sg_heap_entry_owner((entry), offsetof(type, member)))

/* Makes room for so many entries in all; false: out of memory. */
bool sg_heap_reserve(sg_heap *heap, size_t count);
/* The entry is in no heap, its due_ns is set, and there is room for it. */
void sg_heap_push(sg_heap *heap, sg_heap_entry *entry);
/* The entry is in this heap. */
void sg_heap_remove(sg_heap *heap, sg_heap_entry *entry);
/* Empties the heap and frees its memory; the entries are left as they are. */
void sg_heap_free(sg_heap *heap);
/* For tests: whether the order and every index hold. */
bool sg_heap_check(const sg_heap *heap);

#endif
