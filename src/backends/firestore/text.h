/* Text and JSON: what libc and jansson lack. */
#ifndef SG_FIRESTORE_TEXT_H
#define SG_FIRESTORE_TEXT_H

#include <jansson.h>

#include "syncguard/sys/fail.h"

/* printf into memory for syncguard_free; NULL without memory. */
char *sg_firestore_format(const char *format, ...) SYNCGUARD_PRINTF(1, 2);
/* Percent-encodes everything but letters, digits, "-._~" and the characters of `plain`; NULL
 * without memory. */
char *sg_firestore_percent_encode(const char *text, const char *plain);
/* True for a URL whose host is localhost, 127.x.x.x or [::1]. */
bool sg_firestore_url_loopback(const char *url);

/* ---- JSON ---- */

/* Adds a member to an object, or an element to an array, and returns the container. Takes ownership
 * of container and value in every case, and returns NULL if memory ran out anywhere, so that calls
 * can be nested. */
json_t *sg_firestore_set(json_t *object, const char *name, json_t *value);
json_t *sg_firestore_add(json_t *array, json_t *value);
/* Compact text for syncguard_free; NULL without memory or for NULL. */
char *sg_firestore_json_text(const json_t *json);
/* Overwrites a string, because jansson frees strings without wiping them. */
void sg_firestore_json_wipe(const json_t *string);

#endif
