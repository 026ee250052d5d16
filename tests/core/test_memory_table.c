/* The table of the memory backend. */
#include "test.h"

#include "backends/memory/table.h"
#include "syncguard/sys/alloc.h"

typedef struct item {
    sg_memory_node node;
    int number;
} item;

enum { COUNT = 5000 };

static bool memory_table_has_number(const sg_memory_table *table, int number, uint64_t hash)
{
    for (sg_memory_node *node = sg_memory_table_first(table, hash); node != NULL;
         node = node->next) {
        if (((item *)(void *)node)->number == number)
            return true;
    }
    return false;
}

static uint64_t hash_of(int number)
{
    return sg_memory_table_hash(&number, sizeof number, 42);
}

static void test_grow(void **state)
{
    item *items = calloc(COUNT, sizeof *items);
    (void)state;
    assert_non_null(items);
    sg_memory_table table;
    assert_true(sg_memory_table_init(&table));
    for (int i = 0; i < COUNT; i++) {
        items[i].number = i;
        sg_memory_table_add(&table, &items[i].node, hash_of(i));
    }
    assert_int_equal(table.count, COUNT);
    assert_true(table.bucket_count >= COUNT / 2);
    for (int i = 0; i < COUNT; i++)
        assert_true(memory_table_has_number(&table, i, hash_of(i)));
    for (int i = 0; i < COUNT; i += 2)
        sg_memory_table_remove(&table, &items[i].node);
    sg_memory_table_remove(&table, &items[0].node);
    assert_int_equal(table.count, COUNT / 2);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(memory_table_has_number(&table, i, hash_of(i)), i % 2);
    sg_memory_table_free(&table);
    sg_memory_table_free(&table);
    free(items);
}

/* Chains stay short even for keys that differ little. */
static void test_spread(void **state)
{
    item *items = calloc(COUNT, sizeof *items);
    (void)state;
    assert_non_null(items);
    sg_memory_table table;
    assert_true(sg_memory_table_init(&table));
    char key[64];
    for (int i = 0; i < COUNT; i++) {
        int length = snprintf(key, sizeof key, "billing:customer:%08d", i);
        sg_memory_table_add(&table, &items[i].node, sg_memory_table_hash(key, (size_t)length, 7));
    }
    int longest = 0;
    for (int i = 0; i < COUNT; i++) {
        int chain = 0;
        for (sg_memory_node *node = sg_memory_table_first(&table, items[i].node.hash); node != NULL;
             node = node->next)
            chain++;
        longest = chain > longest ? chain : longest;
    }
    assert_true(longest < 16);
    sg_memory_table_free(&table);
    free(items);
}

static int left = -1; /* allocations until failure; -1: none fails */

static void *fail_malloc(size_t size)
{
    if (left == 0)
        return NULL;
    left -= left > 0;
    return malloc(size);
}

static void test_no_memory(void **state)
{
    static const syncguard_allocator failing = {fail_malloc, realloc, free};
    item *items = calloc(COUNT, sizeof *items);
    (void)state;
    assert_non_null(items);
    syncguard_allocator_set(&failing);
    sg_memory_table table;
    for (left = 0; left < 2; left++) {
        int before = left;
        assert_false(sg_memory_table_init(&table));
        left = before;
    }
    left = 2;
    assert_true(sg_memory_table_init(&table));
    /* The table cannot grow any more, but goes on working. */
    for (int i = 0; i < COUNT; i++) {
        items[i].number = i;
        sg_memory_table_add(&table, &items[i].node, hash_of(i));
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(memory_table_has_number(&table, i, hash_of(i)));
    sg_memory_table_free(&table);
    left = -1;
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grow),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
