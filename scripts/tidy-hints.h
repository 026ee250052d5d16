/*
 * Included before every file that clang-tidy reads, and by nothing else. The
 * analyzer sees one file at a time and so cannot know that these functions
 * return the failure that they were given; without it every `return
 * syncguard_fail(...)` looks as if it might succeed.
 */
#include "syncguard/sys/fail.h"

#define syncguard_fail(err, status, ...)                                                           \
    ((void)(syncguard_fail)(err, status, __VA_ARGS__), (status))
#define syncguard_fail_memory(err) ((void)(syncguard_fail_memory)(err), SYNCGUARD_E_OUT_OF_MEMORY)
