/*
 * The rules that every store shares: names, ids, fences, liveness. One routine
 * each, used by all backends.
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
 * Checks a user key and writes its NFC form. InvalidArgument for NULL, empty,
 * no UTF-8, over 512 bytes after NFC, or over 4096 before.
 */
SYNCGUARD_API syncguard_status syncguard_key_normalise(const char *key,
                                                       char out[SYNCGUARD_KEY_SIZE], size_t *length,
                                                       syncguard_error *err);

/*
 * NFC of any UTF-8 text of at most SYNCGUARD_MAX_RAW_KEY_BYTES bytes, into a buffer of `size`
 * bytes (NUL included). Returns the length, or -1: not UTF-8, too long, or no memory.
 */
SYNCGUARD_API ptrdiff_t syncguard_nfc(const char *text, size_t length, char *out, size_t size);

/*
 * The stored name of (prefix, text): "prefix:text", or "text" without a prefix;
 * trailing colons of the prefix are dropped. Where that plus reserve passes
 * limit, "prefix:" and 22 characters of its SHA-256. InvalidArgument if even
 * that is too long, or if text is empty. text must be in NFC already; out has
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

/* FNV-1a, 64 bits: for tables and fingerprints that need no defence against chosen input. The
 * SQLite backend stores what it yields. */
SYNCGUARD_API uint64_t syncguard_fnv1a(const void *data, size_t length);

/* As syncguard_hash, for text of known length. */
SYNCGUARD_API bool syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);

/* Draws a lock id from the kernel; Internal without randomness. */
SYNCGUARD_API syncguard_status syncguard_lock_id_draw(char out[SYNCGUARD_LOCK_ID_SIZE],
                                                      syncguard_error *err);

/* The one liveness rule: expires_at_ms > now_ms - SYNCGUARD_TIME_TOLERANCE_MS. */
SYNCGUARD_API bool syncguard_is_live(int64_t expires_at_ms, int64_t now_ms);
/* How long a lock still counts as live by that rule: 0 or less if it does not. */
SYNCGUARD_API int64_t syncguard_remaining_ms(int64_t expires_at_ms, int64_t now_ms);

/* now_ms + ttl_ms, or InvalidArgument if ttl_ms is not positive or the sum passes 2^53-1. */
SYNCGUARD_API syncguard_status syncguard_expiry(int64_t now_ms, int64_t ttl_ms,
                                                int64_t *expires_at_ms, syncguard_error *err);

/* 15 digits; InvalidArgument for values below 0 or of more digits (what a store says is checked
 * first, by syncguard_fence_next: there such a value is Internal). */
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
