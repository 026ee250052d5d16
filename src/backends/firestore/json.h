/* What jansson lacks: nested calls without checks, text in our memory, wiping. */
#ifndef SG_FIRESTORE_JSON_H
#define SG_FIRESTORE_JSON_H

#include <jansson.h>

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
