/*
 * Status codes and the error struct.
 *
 * A status is a result (zero or positive) or a failure (negative). The error struct belongs to the
 * caller, has a fixed size, never allocates, and never contains a key, a lock id or a credential:
 * only the hash of the key appears in it.
 */
#ifndef SYNCGUARD_ERROR_H
#define SYNCGUARD_ERROR_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The table of all statuses: X(identifier, value, name, meaning). The names of the failures are
 * those of the common lock interface.
 */
#define SYNCGUARD_STATUS_MAP(X)                                                                    \
    X(OK, 0, "Ok", "done")                                                                         \
    X(LOCKED, 1, "Locked", "another owner holds the key")                                          \
    X(ABSENT, 2, "Absent", "no live lock under this key or lock id")                               \
    X(E_SERVICE_UNAVAILABLE, -1, "ServiceUnavailable", "the store cannot be reached or refuses")   \
    X(E_AUTH_FAILED, -2, "AuthFailed", "credentials or permissions were refused")                  \
    X(E_INVALID_ARGUMENT, -3, "InvalidArgument", "an argument or option is not acceptable")        \
    X(E_RATE_LIMITED, -4, "RateLimited", "a quota or a connection limit was reached")              \
    X(E_NETWORK_TIMEOUT, -5, "NetworkTimeout", "the operation's deadline passed")                  \
    X(E_ACQUISITION_TIMEOUT, -6, "AcquisitionTimeout", "the lock helper gave up waiting")          \
    X(E_ABORTED, -7, "Aborted", "the operation was cancelled")                                     \
    X(E_INTERNAL, -8, "Internal", "unexpected data or an unclassified failure")                    \
    X(E_OUT_OF_MEMORY, -9, "OutOfMemory", "memory could not be allocated")

/* Zero and above: a result. Below zero: a failure, with details in syncguard_error. */
typedef enum syncguard_status {
#define SYNCGUARD_STATUS_ENUM(id, value, name, meaning) SYNCGUARD_##id = (value),
    SYNCGUARD_STATUS_MAP(SYNCGUARD_STATUS_ENUM)
#undef SYNCGUARD_STATUS_ENUM
} syncguard_status;

/* Details of a failure, in the caller's memory; never a key, a lock id or a credential. */
typedef struct syncguard_error {
    syncguard_status code;
    /* The store's own code (SQLSTATE, "NOAUTH", "SQLITE_FULL", an HTTP status), or "". */
    char native[32];
    /* Hash of the key the operation was about, or "". */
    char key_hash[SYNCGUARD_HASH_SIZE];
    /* One line for people. Its text may change: programs should use code and native. */
    char message[256];
} syncguard_error;

/* "ServiceUnavailable", "Locked", ...; "Unknown" for a value outside the table. Never NULL. */
SYNCGUARD_API const char *syncguard_status_name(syncguard_status status);

/* The meaning column of the table. Never NULL. */
SYNCGUARD_API const char *syncguard_status_text(syncguard_status status);

#ifdef __cplusplus
}
#endif

#endif
