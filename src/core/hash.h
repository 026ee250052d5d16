/* The hashes of sanitized output, for the core. */
#ifndef SG_CORE_HASH_H
#define SG_CORE_HASH_H

#include "syncguard/types.h"

/* The hash of text that is in NFC already, without the cost of normalizing again. text must be
 * valid UTF-8. */
void sg_hash_nfc(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);

/* Like syncguard_hash_n, or keyed if secret is not NULL. */
bool sg_hash_text(const char *secret, const char *text, size_t length,
                  char out[SYNCGUARD_HASH_SIZE]);

/* sum: 32 bytes. */
void sg_hmac_sha256(const void *secret, size_t secret_length, const void *data, size_t length,
                    uint8_t *sum);

#endif
