/* Sixteen bytes as 22 base64url characters without padding: lock ids and hashed names. */
#ifndef SG_CORE_BASE64URL_H
#define SG_CORE_BASE64URL_H

#include "syncguard/types.h"

#define SG_ID_BYTES 16

void sg_base64url_16(const unsigned char bytes[SG_ID_BYTES], char out[SYNCGUARD_LOCK_ID_SIZE]);

#endif
