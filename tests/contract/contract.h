/*
 * The contract suite: what every store must do, seen through the public interface only. Any backend
 * URL, bare or through the telemetry decorator.
 *
 * Rules for tests here: no assumption about a store but its capabilities, and never its name; keys
 * come from fresh_key, so that runs that share a store do not interfere; assertions only in the
 * main thread (cmocka jumps), threads report through variables; bounds of time are generous, and
 * where a slow machine could spoil a timeline the timeline is run again.
 */
#ifndef CONTRACT_H
#define CONTRACT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "test_assert.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

typedef struct contract_settings {
    const char *url;
    bool telemetry;
} contract_settings;
extern contract_settings contract;

/* The handle of the running group, through the decorator with --telemetry. */
extern syncguard_backend *store;
/* Overwritten by every call that a test makes from the main thread. */
extern syncguard_error err;

typedef struct contract_group {
    const char *name;
    const struct CMUnitTest *tests;
    size_t count;
} contract_group;
extern const contract_group keys_group, ids_group, fences_group, acquire_group, release_group,
    lookup_group, time_group, races_group, options_group, helper_group, waiting_group, handle_group,
    heartbeat_group, clock_group, cleanup_group, abort_group, cancel_group, fork_group,
    telemetry_group, secrets_group, min_hold_group, queue_group, sets_group, slots_group;

/* Another handle on the same URL; options may be NULL. Fails the test if it cannot be opened. */
syncguard_backend *open_store(const syncguard_options *options);
/* The store's capabilities: what a test may expect of it. */
const syncguard_capabilities *able(void);
/* Whether other handles and processes see the same locks. */
bool store_is_shared(void);
/* Reports that a test has no meaning on this store, and counts it; the test must return after
 * it. */
void not_applicable(const char *reason);

/* A key that no other run and no other test uses; name is for readers of the store. */
typedef struct key {
    char text[SYNCGUARD_KEY_SIZE];
} key;
key fresh_key(const char *name);
/* A fresh key padded with 'x' to this many bytes. */
key fresh_key_of(size_t bytes);
/* A well-formed lock id that has never been granted. */
#define FOREIGN_ID "AAAAAAAAAAAAAAAAAAAAAA"

/* Acquires and asserts OK. */
syncguard_grant take(const char *name, int64_t ttl_ms);
/* Asserts what is_locked says. */
void check_locked(const char *name, bool expected);
/* Releases and asserts OK. */
void give_back(const syncguard_grant *grant);

void check_figure(int64_t value, int64_t least, int64_t most, const char *text, const char *file,
                  int line);
/* For times and counts: a failure shows the figure. */
#define assert_between(least, most, value)                                                         \
    check_figure((value), (least), (most), #value, __FILE__, __LINE__)
#define assert_at_least(least, value) assert_between(least, INT64_MAX, value)
#define assert_at_most(most, value) assert_between(INT64_MIN, most, value)

/* Calls run(index, context) in `count` threads at once and waits for all. */
void in_threads(int count, void (*run)(int index, void *context), void *context);

/* Runs this program again as another process: action is release, extend (30 s), shorten (3 s),
 * acquire or is_locked. Returns the status of that operation. Shared stores only. */
syncguard_status in_other_process(const char *action, const char *argument);

/* Events that the decorators of this process delivered (with --telemetry). */
typedef struct event_filter {
    int type;            /* -1: any */
    const char *key;     /* NULL: any; compared by hash */
    const char *lock_id; /* NULL: any; compared by hash */
} event_filter;
/* Number of matching events so far; the latest goes to *last if that is not NULL. */
size_t count_events(event_filter filter, syncguard_event *last);
/* Waits up to 5 s until there are at least this many; returns count_events. */
size_t await_events(event_filter filter, size_t wanted, syncguard_event *last);
/* For decorators that a test opens itself. */
void record_event(void *context, const syncguard_event *event);

#endif
