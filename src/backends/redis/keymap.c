/*
 * The users' keys behind hashed names, as long as somebody waits for them. Locking is the caller's.
 */
#include <string.h>

#include "internal.h"

struct sg_keymap_entry {
    sg_keymap_entry *next;
    size_t key_length;
    char name[SYNCGUARD_NAME_SIZE];
    char key[];
};

static sg_keymap_entry **find(sg_keymap *map, const char *name, size_t length)
{
    unsigned bucket = 0;
    for (size_t i = 0; i < length; i++)
        bucket = bucket * 31 + (unsigned char)name[i];
    sg_keymap_entry **at = &map->buckets[bucket % SG_KEYMAP_BUCKETS];
    while (*at != NULL && (strlen((*at)->name) != length || memcmp((*at)->name, name, length) != 0))
        at = &(*at)->next;
    return at;
}

bool sg_redis_keymap_put(sg_keymap *map, const char *name, size_t name_length, const char *key,
                         size_t key_length)
{
    sg_keymap_entry **at = find(map, name, name_length);
    if (*at != NULL)
        return true;
    sg_keymap_entry *made = syncguard_calloc(1, sizeof *made + key_length + 1);
    if (made == NULL)
        return false;
    memcpy(made->name, name, name_length);
    memcpy(made->key, key, key_length);
    made->key_length = key_length;
    *at = made;
    return true;
}

size_t sg_redis_keymap_get(sg_keymap *map, const char *name, size_t length,
                           char key[SYNCGUARD_KEY_SIZE])
{
    const sg_keymap_entry *found = *find(map, name, length);
    if (found == NULL)
        return 0;
    memcpy(key, found->key, found->key_length);
    return found->key_length;
}

void sg_redis_keymap_remove(sg_keymap *map, const char *name, size_t length)
{
    sg_keymap_entry **at = find(map, name, length);
    sg_keymap_entry *gone = *at;
    if (gone == NULL)
        return;
    *at = gone->next;
    syncguard_free(gone);
}

void sg_redis_keymap_free(sg_keymap *map)
{
    for (size_t i = 0; i < SG_KEYMAP_BUCKETS; i++) {
        while (map->buckets[i] != NULL) {
            sg_keymap_entry *gone = map->buckets[i];
            map->buckets[i] = gone->next;
            syncguard_free(gone);
        }
    }
}
