/* The table of the memory backend. */
#include "test_assert.h"

#include "backends/memory/table.h"
#include "syncguard/sys/alloc.h"
#include "test_alloc.h"

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

static void test_no_memory(void **state)
{
    item *items = calloc(COUNT, sizeof *items);
    (void)state;
    assert_non_null(items);
    test_alloc_install();
    sg_memory_table table;
    for (int granted = 0; granted < 2; granted++) {
        test_fail_arm(granted + 1, true);
        assert_false(sg_memory_table_init(&table));
    }
    test_fail_arm(3, true);
    assert_true(sg_memory_table_init(&table));
    /* The table cannot grow any more, but goes on working. */
    for (int i = 0; i < COUNT; i++) {
        items[i].number = i;
        sg_memory_table_add(&table, &items[i].node, hash_of(i));
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(memory_table_has_number(&table, i, hash_of(i)));
    sg_memory_table_free(&table);
    test_fail_disarm();
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
