/*
 * For programs that use cmocka: its header with those that it needs before it, in their order, and
 * helpers that fail the running test. Only the main thread may call them, because cmocka jumps. The
 * contract suite is installed with this file, so it includes installed headers only.
 */
#ifndef TEST_ASSERT_H
#define TEST_ASSERT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "test_support.h"

/* The call fills the variable err, whose message a failure shows. */
#define assert_status(wanted, call)                                                                \
    test_check_status((call), (wanted), #call, &err, __FILE__, __LINE__)
void test_check_status(syncguard_status got, syncguard_status wanted, const char *text,
                       const syncguard_error *err, const char *file, int line);

/* A handle on the URL. */
syncguard_backend *test_open(const char *url);
/* Starts a thread; join it with pthread_join. */
pthread_t test_start_thread(void *(*run)(void *), void *context);
/* Triggers the abort object after 100 ms, from another thread, which the caller joins. */
pthread_t test_trigger_soon(syncguard_abort *abort_object);
/* The counter of reconnects of a handle with telemetry. */
long test_reconnects_total(const syncguard_backend *backend);

#endif
