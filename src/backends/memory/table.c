/*
 * See table.h.
 *
 * A child may be forked while another thread is in this code. The child then frees the table that
 * it inherited, so the pointers that lead to memory are always valid or NULL: new memory is
 * complete before it is linked, old memory is unlinked before it is freed.
 */
#include "backends/memory/table.h"

#include <string.h>

#include "syncguard/sys/alloc.h"

#define SEGMENT 256

static sg_memory_node **memory_table_bucket(const sg_memory_table *table, size_t index)
{
    return &table->segments[index / SEGMENT][index % SEGMENT];
}

static size_t memory_table_bucket_index(const sg_memory_table *table, uint64_t hash)
{
    size_t index = (size_t)hash & (2 * table->half - 1);

    /* The upper half exists only as far as it has been split off. */
    return index < table->bucket_count ? index : index - table->half;
}

static bool memory_table_add_segment(sg_memory_table *table)
{
    sg_memory_node ***old = table->segments;
    size_t room = table->segment_room != 0 ? table->segment_room * 2 : 4;
    if (table->segment_count == table->segment_room) {
        sg_memory_node ***wider = syncguard_calloc(room, sizeof *wider);
        if (wider == NULL)
            return false;
        if (old != NULL)
            memcpy(wider, old, table->segment_count * sizeof *wider);
        table->segments = wider;
        table->segment_room = room;
        syncguard_free(old);
    }
    table->segments[table->segment_count] = syncguard_calloc(SEGMENT, sizeof(sg_memory_node *));
    if (table->segments[table->segment_count] == NULL)
        return false;
    table->segment_count++;
    return true;
}

bool sg_memory_table_init(sg_memory_table *table)
{
    memset(table, 0, sizeof *table);
    if (!memory_table_add_segment(table)) {
        sg_memory_table_free(table);
        return false;
    }
    table->bucket_count = SEGMENT;
    table->half = SEGMENT;
    return true;
}

void sg_memory_table_free(sg_memory_table *table)
{
    for (size_t i = 0; i < table->segment_count; i++)
        syncguard_free(table->segments[i]);
    syncguard_free(table->segments);
    memset(table, 0, sizeof *table);
}

/* Splits a bucket: adds one, and moves the nodes that now belong to it. */
static void memory_table_grow(sg_memory_table *table)
{
    size_t source = table->bucket_count - table->half;
    size_t target = table->bucket_count;
    if (target / SEGMENT == table->segment_count && !memory_table_add_segment(table))
        return;
    sg_memory_node *node = *memory_table_bucket(table, source);
    *memory_table_bucket(table, source) = NULL;
    *memory_table_bucket(table, target) = NULL;
    table->bucket_count++;
    sg_memory_node *next;
    for (; node != NULL; node = next) {
        sg_memory_node **head =
            memory_table_bucket(table, memory_table_bucket_index(table, node->hash));
        next = node->next;
        node->next = *head;
        *head = node;
    }
    if (table->bucket_count == 2 * table->half)
        table->half *= 2;
}

void sg_memory_table_add(sg_memory_table *table, sg_memory_node *node, uint64_t hash)
{
    if (table->count >= table->bucket_count)
        memory_table_grow(table);
    sg_memory_node **head = memory_table_bucket(table, memory_table_bucket_index(table, hash));
    node->hash = hash;
    node->next = *head;
    *head = node;
    table->count++;
}

void sg_memory_table_remove(sg_memory_table *table, sg_memory_node *node)
{
    sg_memory_node **at = memory_table_bucket(table, memory_table_bucket_index(table, node->hash));
    while (*at != NULL && *at != node)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    *at = node->next;
    node->next = NULL;
    table->count--;
}

sg_memory_node *sg_memory_table_first(const sg_memory_table *table, uint64_t hash)
{
    return *memory_table_bucket(table, memory_table_bucket_index(table, hash));
}

static uint64_t memory_hash_mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return h ^ (h >> 29);
}

uint64_t sg_memory_table_hash(const void *data, size_t length, uint64_t seed)
{
    const unsigned char *at = data;
    uint64_t h = seed ^ (length * UINT64_C(0x9E3779B97F4A7C15));
    uint64_t word;
    for (; length >= sizeof word; at += sizeof word, length -= sizeof word) {
        memcpy(&word, at, sizeof word);
        h = memory_hash_mix(h ^ word);
    }
    word = 0;
    memcpy(&word, at, length);
    return memory_hash_mix(memory_hash_mix(h ^ word));
}
