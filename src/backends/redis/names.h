/* Stored names of a lock, of the index of a lock id and of a fence counter, and keys in them. */
#ifndef SYNCGUARD_REDIS_NAMES_H
#define SYNCGUARD_REDIS_NAMES_H

#include "options.h"
#include "syncguard/sys/names.h"

typedef struct sg_redis_name {
    char text[SYNCGUARD_NAME_SIZE];
    size_t length;
} sg_redis_name;

/* The names of one lock; those that an operation does not need are left out. */
typedef struct sg_redis_lock_names {
    sg_redis_name lock;
    sg_redis_name index;
    sg_redis_name counter;
} sg_redis_lock_names;

/* InvalidArgument for a key whose stored name the backend uses itself. */
syncguard_status sg_redis_name_check(const sg_redis_config *config, const char *key,
                                     syncguard_error *err);
syncguard_status sg_redis_name_lock(const sg_redis_config *config, const char *key,
                                    sg_redis_name *out, syncguard_error *err);
void sg_redis_name_index(const sg_redis_config *config, const char *lock_id, sg_redis_name *out);
syncguard_status sg_redis_name_counter(const sg_redis_config *config, const sg_redis_name *lock,
                                       sg_redis_name *out, syncguard_error *err);
/*
 * The value of an index whose lock id has been taken back. It is the name of an index that cannot
 * exist (no generated id ends in a dash), so that the TypeScript library, which follows an index,
 * finds nothing.
 */
void sg_redis_name_tombstone(const sg_redis_config *config, sg_redis_name *out);
/* For how long the tombstone of an acquire that may arrive until until_ns must last. */
int64_t sg_redis_tombstone_life_ms(int64_t until_ns, int64_t tolerance_ms);

/* Whether a name under the prefix may be that of a lock; those of indexes and counters are not. */
bool sg_redis_name_may_be_lock(const sg_redis_config *config, const char *name, size_t length);
/* Copies the key from a lock's name that is not hashed, and returns its length; 0: there is
 * none. */
size_t sg_redis_name_key(const sg_redis_config *config, const char *name, size_t length,
                         char key[SYNCGUARD_KEY_SIZE]);

#endif
