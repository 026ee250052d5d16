/*
 * A hash table without pauses: it grows by one bucket per new item (linear hashing), so adding the
 * millionth item costs as much as adding the first. Nodes are embedded in the items that they
 * index; the table owns only its buckets. Not locked.
 */
#ifndef SG_MEMORY_TABLE_H
#define SG_MEMORY_TABLE_H

#include "syncguard/types.h"

typedef struct sg_memory_node {
    struct sg_memory_node *next;
    uint64_t hash;
} sg_memory_node;

typedef struct sg_memory_table {
    sg_memory_node ***segments; /* of a fixed number of buckets each */
    size_t segment_count;
    size_t segment_room;
    size_t bucket_count;
    size_t half; /* largest power of two that is not above bucket_count */
    size_t count;
} sg_memory_table;

/* False if out of memory. */
bool sg_memory_table_init(sg_memory_table *table);
/* Frees the buckets. A table that was only zeroed may be freed too. */
void sg_memory_table_free(sg_memory_table *table);
/* Cannot fail: without memory for more buckets the chains only get longer. */
void sg_memory_table_add(sg_memory_table *table, sg_memory_node *node, uint64_t hash);
void sg_memory_table_remove(sg_memory_table *table, sg_memory_node *node);
/* First node of the bucket that hash belongs to; the caller follows next and compares. */
sg_memory_node *sg_memory_table_first(const sg_memory_table *table, uint64_t hash);

/* A fast hash of bytes. Not for names that are stored or shown. */
uint64_t sg_memory_table_hash(const void *data, size_t length, uint64_t seed);

#endif
