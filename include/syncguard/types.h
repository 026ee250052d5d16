/*
 * Constants, fixed-size results and the export macro, which all other public headers use. Nothing
 * here needs to be freed.
 */
#ifndef SYNCGUARD_TYPES_H
#define SYNCGUARD_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SYNCGUARD_API __attribute__((visibility("default")))
#define SYNCGUARD_MUST_CHECK __attribute__((warn_unused_result))
#else
#define SYNCGUARD_API
#define SYNCGUARD_MUST_CHECK
#endif

/* The version of these headers. */
#define SYNCGUARD_VERSION_MAJOR 0
#define SYNCGUARD_VERSION_MINOR 1
#define SYNCGUARD_VERSION_PATCH 0
#define SYNCGUARD_VERSION_STRING "0.1.0"

/* A key is UTF-8; the limit is in bytes after normalization to Unicode NFC. */
#define SYNCGUARD_MAX_KEY_BYTES 512
/* A key longer than this before normalization is refused without being read further. */
#define SYNCGUARD_MAX_RAW_KEY_BYTES 4096
#define SYNCGUARD_DEFAULT_TTL_MS 30000
/* On every backend, a lock is live while expires_at_ms > now_ms - tolerance. */
#define SYNCGUARD_TIME_TOLERANCE_MS 1000
#define SYNCGUARD_DEFAULT_TIMEOUT_MS 5000
/* Largest time or ttl: 2^53 - 1, so that JSON numbers stay exact. */
#define SYNCGUARD_MAX_TIME_MS INT64_C(9007199254740991)

#define SYNCGUARD_LOCK_ID_CHARS 22                   /* base64url */
#define SYNCGUARD_FENCE_DIGITS 15                    /* with leading zeros */
#define SYNCGUARD_FENCE_MAX INT64_C(900000000000000) /* acquire fails beyond it */
#define SYNCGUARD_FENCE_WARN INT64_C(90000000000000) /* the log warns above it */
#define SYNCGUARD_HASH_CHARS 24                      /* hexadecimal digits */
#define SYNCGUARD_MAX_OWNER_BYTES 128                /* of UTF-8 */

/* Longest stored name per store, and the bytes of it that are reserved for derived names. */
#define SYNCGUARD_REDIS_LIMIT_BYTES 1000
#define SYNCGUARD_REDIS_RESERVE_BYTES 26
#define SYNCGUARD_POSTGRES_LIMIT_BYTES 1700
#define SYNCGUARD_POSTGRES_RESERVE_BYTES 0
#define SYNCGUARD_FIRESTORE_LIMIT_BYTES 1500
#define SYNCGUARD_FIRESTORE_RESERVE_BYTES 0
#define SYNCGUARD_SQLITE_LIMIT_BYTES 1700
#define SYNCGUARD_SQLITE_RESERVE_BYTES 0

/* Buffer sizes with the closing NUL. */
#define SYNCGUARD_KEY_SIZE (SYNCGUARD_MAX_KEY_BYTES + 1)
#define SYNCGUARD_LOCK_ID_SIZE (SYNCGUARD_LOCK_ID_CHARS + 1)
#define SYNCGUARD_FENCE_SIZE (SYNCGUARD_FENCE_DIGITS + 1)
#define SYNCGUARD_HASH_SIZE (SYNCGUARD_HASH_CHARS + 1)
#define SYNCGUARD_OWNER_SIZE (SYNCGUARD_MAX_OWNER_BYTES + 1)

/*
 * The constants with which the library was compiled, for bindings and for programs that check
 * whether their headers match the library.
 */
typedef struct syncguard_constants {
    const char *version;
    int64_t max_key_bytes;
    int64_t max_raw_key_bytes;
    int64_t default_ttl_ms;
    int64_t time_tolerance_ms;
    int64_t default_timeout_ms;
    int64_t max_time_ms;
    int64_t fence_max;
    int64_t fence_warn;
    int64_t redis_limit_bytes;
    int64_t redis_reserve_bytes;
    int64_t postgres_limit_bytes;
    int64_t postgres_reserve_bytes;
    int64_t firestore_limit_bytes;
    int64_t firestore_reserve_bytes;
    int64_t sqlite_limit_bytes;
    int64_t sqlite_reserve_bytes;
} syncguard_constants;

/* A static, read-only struct. */
SYNCGUARD_API const syncguard_constants *syncguard_constants_get(void);

/*
 * The result of a successful acquire: the lock id is needed to release and extend the lock, the
 * fence is for the protected resource. Compare fences of one key as text (strcmp): that of a later
 * grant is always greater. Times are milliseconds since 1970 on the clock of the backend's time
 * authority.
 */
typedef struct syncguard_grant {
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t expires_at_ms;
} syncguard_grant;

/* True if lock_id is exactly 22 base64url characters. NULL is false. */
SYNCGUARD_API bool syncguard_lock_id_valid(const char *lock_id);

/*
 * The 24-digit hash that replaces a key or a lock id in sanitized output. text is normalized to NFC
 * first. Returns false (and "" in out) if text is NULL, not valid UTF-8, or longer than
 * SYNCGUARD_MAX_RAW_KEY_BYTES.
 *
 * The hash does not hide its input, because it is not cryptographic. A short key can be computed
 * from it within seconds, a longer one can be guessed and checked, and the hash of a lock id
 * reveals most of its bits. It cannot be changed, because other implementations print the same
 * hashes. If people who must not know the keys can see hashes, set hash_secret in the options of
 * the handle (syncguard/options.h).
 */
SYNCGUARD_API bool syncguard_hash(const char *text, char out[SYNCGUARD_HASH_SIZE]);

/* The hash that a handle with this hash_secret uses for text: the first 96 bits of HMAC-SHA-256.
 * With it the lines about a known key can be found in logs. Otherwise like syncguard_hash. */
SYNCGUARD_API bool syncguard_hash_keyed(const char *secret, const char *text,
                                        char out[SYNCGUARD_HASH_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
