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

/*
 * Characters that the installed utf8proc may not know yet (nfc_newer.c). All implementations that
 * share a store must normalize in the same way, whatever the age of the library that each was built
 * with. An entry counts only if utf8proc calls the character unassigned.
 */

/* Canonical combining class; 0 for anything that is not in the table. */
int sg_newer_class(int32_t code);
/* Writes the two halves of a canonical decomposition. */
bool sg_newer_split(int32_t code, int32_t halves[2]);
/* The character composed of the two, or 0. */
int32_t sg_newer_join(int32_t first, int32_t second);

#endif
