/* Small functions that read and write text, independent of the locale. */
#ifndef SG_CORE_TEXT_H
#define SG_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "syncguard/types.h"

int sg_ascii_lower(int c);

/* Reads a whole decimal number with an optional minus and nothing else. False if text is not one,
 * or if it does not fit. */
bool sg_read_int64(const char *text, int64_t *value);

/* "250ms", "1.5s", "12s", "3m05s", "2h03m", "4d02h", as the command prints it; negative is "0s". */
void sg_format_duration(int64_t ms, char *out, size_t size);

/* The colon after a URL's scheme (a letter, then letters, digits, '+', '-', '.'), or NULL. */
const char *sg_scheme_end(const char *url);

#define SG_ID_BYTES 16

/* Sixteen bytes as 22 base64url characters without padding: lock ids and hashed names. */
void sg_base64url_16(const unsigned char bytes[SG_ID_BYTES], char out[SYNCGUARD_LOCK_ID_SIZE]);

#endif
