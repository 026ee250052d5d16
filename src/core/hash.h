/* The hash of text that is in NFC already, without the price of normalising again. */
#ifndef SG_CORE_HASH_H
#define SG_CORE_HASH_H

#include "syncguard/types.h"

/* text is valid UTF-8. */
void sg_hash_nfc(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);

#endif
