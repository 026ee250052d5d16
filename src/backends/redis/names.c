/*
 * Stored names: PREFIX:KEY, PREFIX:id:LOCKID and PREFIX:fence:LOCKNAME. A name that would be longer
 * than the limit that all libraries share has a hash in place of what follows the prefix.
 */
#include "names.h"

#include <string.h>

#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"

static bool redis_name_starts_with(const char *text, const char *start, size_t length)
{
    return strncmp(text, start, length) == 0;
}

/* rest: what follows "PREFIX:". */
static bool redis_name_is_index(const char *rest)
{
    return redis_name_starts_with(rest, "id:", 3) && syncguard_lock_id_valid(rest + 3);
}

static bool redis_name_is_counter(const sg_redis_config *config, const char *rest)
{
    return redis_name_starts_with(rest, "fence:", 6) &&
           redis_name_starts_with(rest + 6, config->prefix, config->prefix_length) &&
           rest[6 + config->prefix_length] == ':';
}

syncguard_status sg_redis_name_check(const sg_redis_config *config, const char *key,
                                     syncguard_error *err)
{
    if (!redis_name_is_index(key) && !redis_name_is_counter(config, key))
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the key collides with a name that the backend uses itself");
}

syncguard_status sg_redis_name_lock(const sg_redis_config *config, const char *key,
                                    sg_redis_name *out, syncguard_error *err)
{
    syncguard_status status = sg_redis_name_check(config, key, err);
    if (status != SYNCGUARD_OK)
        return status;
    return syncguard_storage_name(config->prefix, key, SYNCGUARD_REDIS_LIMIT_BYTES,
                                  SYNCGUARD_REDIS_RESERVE_BYTES, out->text, &out->length, err);
}

void sg_redis_name_index(const sg_redis_config *config, const char *lock_id, sg_redis_name *out)
{
    char text[3 + SYNCGUARD_LOCK_ID_SIZE] = "id:";
    memcpy(text + 3, lock_id, SYNCGUARD_LOCK_ID_CHARS + 1);
    /* A prefix of at most 951 bytes leaves room for the hash. */
    (void)syncguard_storage_name(config->prefix, text, SYNCGUARD_REDIS_LIMIT_BYTES,
                                 SYNCGUARD_REDIS_RESERVE_BYTES, out->text, &out->length, NULL);
}

void sg_redis_name_tombstone(const sg_redis_config *config, sg_redis_name *out)
{
    sg_redis_name_index(config, "----------------------", out);
}

int64_t sg_redis_tombstone_life_ms(int64_t until_ns, int64_t tolerance_ms)
{
    int64_t left_ms = (until_ns - syncguard_clock_ns()) / SYNCGUARD_NS_PER_MS;
    return (left_ms > 0 ? left_ms : 0) + tolerance_ms;
}

syncguard_status sg_redis_name_counter(const sg_redis_config *config, const sg_redis_name *lock,
                                       sg_redis_name *out, syncguard_error *err)
{
    return syncguard_fence_name(config->prefix, lock->text, SYNCGUARD_REDIS_LIMIT_BYTES,
                                SYNCGUARD_REDIS_RESERVE_BYTES, out->text, &out->length, err);
}

bool sg_redis_name_may_be_lock(const sg_redis_config *config, const char *name, size_t length)
{
    size_t skip = config->prefix_length + 1;
    return length > skip && length < SYNCGUARD_NAME_SIZE && !redis_name_is_index(name + skip) &&
           !redis_name_is_counter(config, name + skip);
}

size_t sg_redis_name_key(const sg_redis_config *config, const char *name, size_t length,
                         char key[SYNCGUARD_KEY_SIZE])
{
    size_t skip = config->prefix_length + 1;
    if (length <= skip || length - skip >= SYNCGUARD_KEY_SIZE)
        return 0;
    memcpy(key, name + skip, length - skip);
    key[length - skip] = '\0';
    return length - skip;
}
