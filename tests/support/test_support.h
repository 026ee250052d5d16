/*
 * What tests of several folders need: the time, pauses, and callbacks that count or ignore what
 * they are given. Neither cmocka nor the library has to be linked. The contract suite is installed
 * with this file, so it includes installed headers only.
 */
#ifndef TEST_SUPPORT_H
#define TEST_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include <syncguard.h>

/* A clock that does not step. */
int64_t test_now_ns(void);
int64_t test_now_us(void);
int64_t test_now_ms(void);
double test_now_s(void);
/* The time of day. */
int64_t test_wall_ns(void);
int64_t test_wall_ms(void);
/* These return at once if the time is over already. A signal does not end them. */
void test_sleep_us(int64_t us);
void test_sleep_ms(int64_t ms);
void test_sleep_until_ms(int64_t at);

/* Arguments of a call with a timeout. */
syncguard_call test_call(int64_t timeout_ms);

/* For qsort, ascending. */
int test_compare_int64(const void *a, const void *b);
int test_compare_double(const void *a, const void *b);

/* Callbacks that do nothing; the list goes on. */
bool test_ignore_info(void *context, const syncguard_lock_info *info);
bool test_ignore_raw(void *context, const syncguard_lock_info_raw *info);
void test_ignore_event(void *context, const syncguard_event *event);
void test_ignore_finding(void *context, const syncguard_finding *finding);
void test_ignore_report(void *context, const syncguard_error *error, const char *key,
                        const char *lock_id, const char *source);

/* Callbacks that count. Context is an int ... */
bool test_count_info(void *context, const syncguard_lock_info *info);
bool test_count_raw(void *context, const syncguard_lock_info_raw *info);
void test_count_finding(void *context, const syncguard_finding *finding);
/* ... or an atomic_int, where another thread calls them. */
void test_count_event(void *context, const syncguard_event *event);
void test_count_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason);
void test_count_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms);

#endif
