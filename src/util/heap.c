/* See heap.h. */
#include "heap.h"

#include <string.h>

#include "syncguard/sys/alloc.h"
#include "util/check.h"

#define FIRST_CAPACITY 16

static void heap_place(const sg_heap *heap, sg_heap_entry *entry, size_t index)
{
    heap->entries[index] = entry;
    entry->index = index;
}

/* Puts an entry at an index or above, where it is not earlier than its parent. */
static void heap_sift_up(const sg_heap *heap, sg_heap_entry *entry, size_t index)
{
    while (index > 0 && heap->entries[(index - 1) / 2]->due_ns > entry->due_ns) {
        heap_place(heap, heap->entries[(index - 1) / 2], index);
        index = (index - 1) / 2;
    }
    heap_place(heap, entry, index);
}

static void heap_sift_down(const sg_heap *heap, sg_heap_entry *entry, size_t index)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count &&
            heap->entries[child + 1]->due_ns < heap->entries[child]->due_ns)
            child++;
        if (heap->entries[child]->due_ns >= entry->due_ns)
            break;
        heap_place(heap, heap->entries[child], index);
        index = child;
    }
    heap_place(heap, entry, index);
}

bool sg_heap_reserve(sg_heap *heap, size_t count)
{
    if (count <= heap->capacity)
        return true;
    size_t capacity = heap->capacity > 0 ? 2 * heap->capacity : FIRST_CAPACITY;
    if (capacity < count)
        capacity = count;
    sg_heap_entry **grown = syncguard_malloc(capacity * sizeof(sg_heap_entry *));
    if (grown == NULL)
        return false;
    sg_heap_entry **old = heap->entries;
    if (heap->count > 0)
        memcpy(grown, old, heap->count * sizeof(sg_heap_entry *));
    heap->entries = grown;
    heap->capacity = capacity;
    /* After its pointer is gone: a child forked at any moment frees what it finds. */
    syncguard_free(old);
    return true;
}

void sg_heap_push(sg_heap *heap, sg_heap_entry *entry)
{
    SG_CHECK(heap->count < heap->capacity);
    heap_sift_up(heap, entry, heap->count++);
}

void sg_heap_remove(sg_heap *heap, sg_heap_entry *entry)
{
    size_t index = entry->index;
    SG_CHECK(index < heap->count && heap->entries[index] == entry);
    entry->index = SG_HEAP_OUTSIDE;
    sg_heap_entry *last = heap->entries[--heap->count];
    if (last == entry)
        return;
    heap_sift_up(heap, last, index);
    heap_sift_down(heap, last, last->index);
}

void sg_heap_free(sg_heap *heap)
{
    sg_heap_entry **entries = heap->entries;
    *heap = (sg_heap){NULL, 0, 0};
    syncguard_free(entries);
}

bool sg_heap_check(const sg_heap *heap)
{
    for (size_t i = 0; i < heap->count; i++) {
        const sg_heap_entry *entry = heap->entries[i];
        if (entry->index != i || heap->entries[(i > 0 ? i - 1 : 0) / 2]->due_ns > entry->due_ns)
            return false;
    }
    return heap->count <= heap->capacity;
}
