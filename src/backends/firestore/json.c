/* See json.h. No state. */
#include "json.h"

#include <stdint.h>
#include <string.h>

#include "syncguard/sys/alloc.h"

json_t *sg_firestore_set(json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) == 0)
        return object;
    json_decref(object);
    return NULL;
}

json_t *sg_firestore_add(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) == 0)
        return array;
    json_decref(array);
    return NULL;
}

char *sg_firestore_json_text(const json_t *json)
{
    size_t size = json != NULL ? json_dumpb(json, NULL, 0, JSON_COMPACT) : 0;
    char *text = size != 0 ? syncguard_malloc(size + 1) : NULL;
    if (text != NULL && json_dumpb(json, text, size, JSON_COMPACT) == size) {
        text[size] = '\0';
        return text;
    }
    syncguard_free(text);
    return NULL;
}

void sg_firestore_json_wipe(const json_t *string)
{
    const char *text = json_string_value(string);
    if (text != NULL)
        explicit_bzero((void *)(uintptr_t)text, json_string_length(string));
}
