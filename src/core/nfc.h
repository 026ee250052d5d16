/* Unicode NFC. utf8proc has the data; the algorithm is in nfc.c, which says why. */
#ifndef SG_CORE_NFC_H
#define SG_CORE_NFC_H

#include "syncguard/types.h"

typedef enum sg_nfc_result { SG_NFC_OK, SG_NFC_INVALID, SG_NFC_MEMORY } sg_nfc_result;

/* True if text is ASCII, and so its own NFC. */
bool sg_nfc_is_plain(const char *text, size_t length);

/* The NFC of text with a terminating NUL; the caller frees *out. Time and memory are proportional
 * to length, so callers must limit it first. */
sg_nfc_result sg_nfc_alloc(const char *text, size_t length, char **out, size_t *out_length);

/* Reads one code point. Returns its length in bytes, or 0 if there is no valid sequence. length
 * must not be 0. */
size_t sg_utf8_next(const char *text, size_t length, int32_t *code);
bool sg_utf8_valid(const char *text, size_t length);

#endif
