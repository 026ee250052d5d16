/* The list and the heap, against plain arrays: many random steps, checked after each. */
#include "test_assert.h"

#include <stdlib.h>
#include <string.h>

#include "syncguard/sys/list.h"
#include "util/heap.h"

enum { ITEMS = 40, STEPS = 20000 };

typedef struct item {
    int number;
    syncguard_link other; /* in front, so that the member's place matters */
    syncguard_link link;
    sg_heap_entry timer;
    bool inside;
} item;

/* The same sequence in every run. */
static unsigned containers_random(unsigned below)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % below;
}

static void list_of_zeros_is_empty(void **state)
{
    (void)state;
    syncguard_links list = {0};
    assert_null(list.first);
    assert_null(syncguard_links_pop(&list));
    assert_true(syncguard_links_check(&list));
}

static void list_keeps_the_order_of_arrival(void **state)
{
    (void)state;
    static item items[ITEMS];
    syncguard_links list = {0};
    item *expected[ITEMS];
    size_t count = 0;
    for (int step = 0; step < STEPS; step++) {
        item *each = &items[containers_random(ITEMS)];
        if (!each->inside) {
            syncguard_links_append(&list, &each->link);
            expected[count++] = each;
        } else {
            if (expected[0] == each)
                assert_ptr_equal(syncguard_links_pop(&list), &each->link);
            else
                syncguard_links_remove(&list, &each->link);
            size_t at = 0;
            while (expected[at] != each)
                at++;
            memmove(&expected[at], &expected[at + 1], (--count - at) * sizeof(item *));
        }
        each->inside = !each->inside;
        size_t seen = 0;
        for (syncguard_link *link = list.first; link != NULL; link = link->next)
            assert_ptr_equal(SYNCGUARD_LINKED(link, item, link), expected[seen++]);
        assert_int_equal(seen, count);
        assert_true(syncguard_links_check(&list));
    }
}

static void list_check_finds_a_broken_link(void **state)
{
    (void)state;
    item items[3] = {{0}};
    syncguard_links list = {0};
    for (int i = 0; i < 3; i++)
        syncguard_links_append(&list, &items[i].link);
    items[2].link.previous = &items[0].link;
    assert_false(syncguard_links_check(&list));
    items[2].link.previous = &items[1].link;
    list.last = &items[1].link;
    assert_false(syncguard_links_check(&list));
}

/* As a child sees it that was forked between two steps of a removal or of an addition. */
static void list_can_be_walked_after_every_step(void **state)
{
    (void)state;
    item items[3] = {{0}};
    syncguard_links list = {0};
    for (int i = 0; i < 3; i++)
        syncguard_links_append(&list, &items[i].link);
    list.first = &items[1].link; /* the first is removed; the second does not know it yet */
    assert_ptr_equal(items[1].link.previous, &items[0].link);
    assert_ptr_equal(list.first->next, &items[2].link);
    assert_null(list.first->next->next);
    item added = {0};
    items[2].link.next = &added.link; /* the last does not know it yet */
    assert_ptr_equal(list.last, &items[2].link);
    assert_ptr_equal(list.first->next->next, &added.link);
    assert_null(list.first->next->next->next);
}

static void heap_gives_the_earliest_first(void **state)
{
    (void)state;
    static item items[ITEMS];
    sg_heap heap = {0};
    assert_true(sg_heap_reserve(&heap, ITEMS));
    size_t count = 0;
    for (int step = 0; step < STEPS; step++) {
        item *each = &items[containers_random(ITEMS)];
        if (!each->inside) {
            each->timer.due_ns = containers_random(3) == 0 ? 7 : (int64_t)containers_random(1000);
            sg_heap_push(&heap, &each->timer);
            count++;
        } else {
            sg_heap_remove(&heap, &each->timer);
            assert_int_equal(each->timer.index, SG_HEAP_OUTSIDE);
            count--;
        }
        each->inside = !each->inside;
        assert_int_equal(heap.count, count);
        assert_true(sg_heap_check(&heap));
        for (int i = 0; i < ITEMS; i++)
            assert_true(!items[i].inside || items[i].timer.due_ns >= heap.entries[0]->due_ns);
    }
    int64_t before = INT64_MIN;
    while (heap.count > 0) {
        sg_heap_entry *first = heap.entries[0];
        assert_true(first->due_ns >= before);
        before = first->due_ns;
        sg_heap_remove(&heap, first);
    }
    sg_heap_free(&heap);
    assert_null(heap.entries);
}

static void heap_grows_and_keeps_its_entries(void **state)
{
    (void)state;
    static item items[500];
    sg_heap heap = {0};
    for (size_t i = 0; i < 500; i++) {
        assert_true(sg_heap_reserve(&heap, heap.count + 1));
        items[i].timer.due_ns = (int64_t)((i * 7919) % 500);
        sg_heap_push(&heap, &items[i].timer);
        assert_true(sg_heap_check(&heap));
    }
    assert_true(heap.capacity < 1100);
    for (int64_t due = 0; due < 500; due++) {
        assert_int_equal(heap.entries[0]->due_ns, due);
        sg_heap_remove(&heap, heap.entries[0]);
    }
    sg_heap_free(&heap);
}

static void heap_check_finds_a_broken_order(void **state)
{
    (void)state;
    item items[3] = {{0}};
    sg_heap heap = {0};
    assert_true(sg_heap_reserve(&heap, 3));
    for (int i = 0; i < 3; i++) {
        items[i].timer.due_ns = i;
        sg_heap_push(&heap, &items[i].timer);
    }
    items[0].timer.due_ns = 5;
    assert_false(sg_heap_check(&heap));
    items[0].timer.due_ns = 0;
    items[2].timer.index = 1;
    assert_false(sg_heap_check(&heap));
    sg_heap_free(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_of_zeros_is_empty),
        cmocka_unit_test(list_keeps_the_order_of_arrival),
        cmocka_unit_test(list_check_finds_a_broken_link),
        cmocka_unit_test(list_can_be_walked_after_every_step),
        cmocka_unit_test(heap_gives_the_earliest_first),
        cmocka_unit_test(heap_grows_and_keeps_its_entries),
        cmocka_unit_test(heap_check_finds_a_broken_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
