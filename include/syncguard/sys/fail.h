/* Filling in the caller's error struct. err may be NULL everywhere. */
#ifndef SYNCGUARD_SYS_FAIL_H
#define SYNCGUARD_SYS_FAIL_H

#include "../error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The compiler checks the arguments of a function with such a format. */
#if defined(__GNUC__)
#define SYNCGUARD_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define SYNCGUARD_PRINTF(format_index, first)
#endif

/*
 * Sets *err and returns status, for `return syncguard_fail(err, ...)`. native is the store's
 * code or NULL. The text must not contain keys, lock ids or credentials. A text that is too long
 * is cut at a character boundary, and control characters are replaced.
 */
SYNCGUARD_API syncguard_status syncguard_fail(syncguard_error *err, syncguard_status status,
                                              const char *native, const char *format, ...)
    SYNCGUARD_PRINTF(4, 5);

/* Sets *err for a lack of memory, and returns OutOfMemory. */
SYNCGUARD_API syncguard_status syncguard_fail_memory(syncguard_error *err);

/* What an errno value means, in English ("Permission denied"). The text is constant. */
SYNCGUARD_API const char *syncguard_errno_text(int error);

/* Resets *err to "no error". */
SYNCGUARD_API void syncguard_error_clear(syncguard_error *err);

/* Adds the hash of a normalized key to an error that is being returned. */
SYNCGUARD_API void syncguard_error_key(syncguard_error *err, const char *key, size_t length);

#ifdef __cplusplus
}
#endif

#endif
