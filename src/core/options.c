/* Options structs: the size rule, the defaults, and the values that every backend shares. Also the
 * log function. */
#include "syncguard/sys/options.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/nfc.h"
#include "syncguard/backend.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/url.h"

/* No struct of the library comes near this: a larger size was never set, and cannot be trusted. */
#define LARGEST_STRUCT 65536
#define FIRST_SIZE SYNCGUARD_SIZE_UP_TO(syncguard_options, on_release_error_context)
#define MIN_HASH_SECRET 16
#define MAX_HASH_SECRET 1024

syncguard_status syncguard_struct_read(const void *given, void *out, size_t known_size,
                                       size_t minimum, const char *name, syncguard_error *err)
{
    const unsigned char *bytes = given;
    if (given == NULL)
        return SYNCGUARD_OK;
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < minimum || size < sizeof size)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the size member of %s is too small: start from the INIT macro",
                              name);
    for (size_t i = known_size; i < size; i++) {
        if (size > LARGEST_STRUCT || bytes[i] != 0)
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "%s has members that this version of the library does not know",
                                  name);
    }
    memcpy(out, given, size < known_size ? size : known_size);
    memcpy(out, &known_size, sizeof known_size);
    return SYNCGUARD_OK;
}

void syncguard_struct_init(void *out, size_t size, const void *defaults, size_t known_size)
{
    if (out == NULL || size < sizeof size)
        return;
    memset(out, 0, size);
    memcpy(out, defaults, size < known_size ? size : known_size);
    memcpy(out, &size, sizeof size);
}

void syncguard_options_init(syncguard_options *options, size_t size)
{
    static const syncguard_options defaults = SYNCGUARD_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

void syncguard_call_init(syncguard_call *call, size_t size)
{
    static const syncguard_call defaults = SYNCGUARD_CALL_INIT;
    syncguard_struct_init(call, size, &defaults, sizeof defaults);
}

static syncguard_status core_options_refuse(syncguard_error *err, const char *what)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s", what);
}

static syncguard_status core_options_check_owner(const char *owner, syncguard_error *err)
{
    if (owner == NULL)
        return SYNCGUARD_OK;
    size_t length = strnlen(owner, SYNCGUARD_MAX_OWNER_BYTES + 1);
    if (length > SYNCGUARD_MAX_OWNER_BYTES)
        return core_options_refuse(err, "the owner label is longer than 128 bytes");
    if (!sg_utf8_valid(owner, length))
        return core_options_refuse(err, "the owner label is not valid UTF-8");
    return SYNCGUARD_OK;
}

static syncguard_status core_options_check_secret(const char *secret, syncguard_error *err)
{
    size_t length = secret != NULL ? strnlen(secret, MAX_HASH_SECRET + 1) : MIN_HASH_SECRET;
    if (length < MIN_HASH_SECRET || length > MAX_HASH_SECRET)
        return core_options_refuse(err, "hash_secret must have 16 to 1024 bytes");
    return SYNCGUARD_OK;
}

syncguard_status syncguard_options_read(const syncguard_options *given, syncguard_options *out,
                                        syncguard_error *err)
{
    static const syncguard_options defaults = SYNCGUARD_OPTIONS_INIT;
    syncguard_options read = defaults;
    *out = defaults;
    syncguard_status status =
        syncguard_struct_read(given, &read, sizeof read, FIRST_SIZE, "options", err);
    if (status != SYNCGUARD_OK)
        return status;
    if (read.timeout_ms <= 0 || read.timeout_ms > SYNCGUARD_MAX_TIME_MS)
        return core_options_refuse(err, "timeout_ms must be positive");
    if (read.dispose_timeout_ms < 0 || read.dispose_timeout_ms > SYNCGUARD_MAX_TIME_MS)
        return core_options_refuse(err, "dispose_timeout_ms must not be negative");
    status = core_options_check_owner(read.owner, err);
    if (status == SYNCGUARD_OK)
        status = core_options_check_secret(read.hash_secret, err);
    if (status == SYNCGUARD_OK)
        *out = read;
    return status;
}

const syncguard_options *syncguard_backend_options(const syncguard_backend *backend)
{
    return &backend->core->options;
}

const syncguard_capabilities *syncguard_capabilities_get(const syncguard_backend *backend)
{
    return &backend->capabilities;
}

void syncguard_backend_log(const syncguard_backend *backend, syncguard_log_level level,
                           const char *format, ...)
{
    const syncguard_options *options = &backend->core->options;
    if (options->log == NULL)
        return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    options->log(options->log_context, level, line);
}
