/*
 * Included before every file that clang-tidy reads, and nowhere else. The
 * analyzer sees one file at a time, so it cannot know that these functions
 * return the failure that they are given. Without these macros every `return
 * syncguard_fail(...)` would look as if it might succeed.
 */
#include "syncguard/sys/fail.h"

#define syncguard_fail(err, status, ...)                                                           \
    ((void)(syncguard_fail)(err, status, __VA_ARGS__), (status))
#define syncguard_fail_memory(err) ((void)(syncguard_fail_memory)(err), SYNCGUARD_E_OUT_OF_MEMORY)
