/*
 * The rules that all stores share: names, ids, fences, liveness. Each rule is one
 * function that all backends use.
 */
#ifndef SYNCGUARD_SYS_NAMES_H
#define SYNCGUARD_SYS_NAMES_H

#include "../error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Room for the longest stored name of any store, NUL included. */
#define SYNCGUARD_NAME_SIZE 1701

/*
 * Checks a user key and writes its NFC form. InvalidArgument if the key is NULL, empty,
 * not UTF-8, longer than 512 bytes after NFC, or longer than 4096 before.
 */
SYNCGUARD_API syncguard_status syncguard_key_normalize(const char *key,
                                                       char out[SYNCGUARD_KEY_SIZE], size_t *length,
                                                       syncguard_error *err);

/*
 * NFC of any UTF-8 text of at most SYNCGUARD_MAX_RAW_KEY_BYTES bytes, into a buffer of `size`
 * bytes (NUL included). Returns the length, or -1: not UTF-8, too long, or no memory.
 */
SYNCGUARD_API ptrdiff_t syncguard_nfc(const char *text, size_t length, char *out, size_t size);

/*
 * The stored name of (prefix, text): "prefix:text", or "text" without a prefix;
 * trailing colons of the prefix are dropped. If this name plus reserve is longer than
 * limit, "prefix:" and 22 characters of the name's SHA-256 instead. InvalidArgument if
 * even that is too long, or if text is empty. text must be in NFC already; out has
 * SYNCGUARD_NAME_SIZE bytes.
 */
SYNCGUARD_API syncguard_status syncguard_storage_name(const char *prefix, const char *text,
                                                      size_t limit, size_t reserve, char *out,
                                                      size_t *length, syncguard_error *err);

/* The counter's name, derived from the lock's stored name and never from the user key. */
SYNCGUARD_API syncguard_status syncguard_fence_name(const char *prefix, const char *storage_name,
                                                    size_t limit, size_t reserve, char *out,
                                                    size_t *length, syncguard_error *err);

/* 22 characters for the first 16 bytes of SHA-256 of data: the hashed form of a name. */
SYNCGUARD_API void syncguard_name_hash(const void *data, size_t length,
                                       char out[SYNCGUARD_LOCK_ID_SIZE]);

/* FNV-1a, 64 bits: for tables and fingerprints that need no protection against chosen input. The
 * SQLite backend stores its results, so it must not change. */
SYNCGUARD_API uint64_t syncguard_fnv1a(const void *data, size_t length);

/* As syncguard_hash, for text of known length. */
SYNCGUARD_API bool syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);

/* Generates a lock id from the kernel's random numbers; Internal if there are none yet. */
SYNCGUARD_API syncguard_status syncguard_lock_id_draw(char out[SYNCGUARD_LOCK_ID_SIZE],
                                                      syncguard_error *err);

/* The one liveness rule: expires_at_ms > now_ms - SYNCGUARD_TIME_TOLERANCE_MS. */
SYNCGUARD_API bool syncguard_is_live(int64_t expires_at_ms, int64_t now_ms);
/* For how long the lock is still live by that rule; 0 or less if it is not. */
SYNCGUARD_API int64_t syncguard_remaining_ms(int64_t expires_at_ms, int64_t now_ms);

/* now_ms + ttl_ms; InvalidArgument if ttl_ms is not positive or the sum is more than 2^53-1. */
SYNCGUARD_API syncguard_status syncguard_expiry(int64_t now_ms, int64_t ttl_ms,
                                                int64_t *expires_at_ms, syncguard_error *err);

/* Writes 15 digits; InvalidArgument if value is negative or has more digits. (Check a value from a
 * store with syncguard_fence_next first: it returns Internal for such a value.) */
SYNCGUARD_API syncguard_status syncguard_fence_format(int64_t value, char out[SYNCGUARD_FENCE_SIZE],
                                                      syncguard_error *err);
/* True if text is exactly 15 digits. */
SYNCGUARD_API bool syncguard_fence_valid(const char *text);
/* The number in text of 1 to 15 digits, as fences and counters are stored; false for anything
 * else. */
SYNCGUARD_API bool syncguard_fence_parse(const char *text, int64_t *value);
/*
 * The counter after `current`: Internal if current is negative or already at
 * SYNCGUARD_FENCE_MAX (numbers are compared, not text). Nothing may be written then.
 */
SYNCGUARD_API syncguard_status syncguard_fence_next(int64_t current, int64_t *next,
                                                    syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
