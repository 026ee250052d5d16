/* Strings of the Firestore backend: formatted, percent-encoded, classified. */
#ifndef SG_FIRESTORE_TEXT_H
#define SG_FIRESTORE_TEXT_H

#include "syncguard/sys/fail.h"

/* printf into memory for syncguard_free; NULL without memory. */
char *sg_firestore_format(const char *format, ...) SYNCGUARD_PRINTF(1, 2);
/* Percent-encodes everything but letters, digits, "-._~" and the characters of `plain`; NULL
 * without memory. */
char *sg_firestore_percent_encode(const char *text, const char *plain);
/* True for a URL whose host is localhost, 127.x.x.x or [::1]. */
bool sg_firestore_url_loopback(const char *url);

#endif
