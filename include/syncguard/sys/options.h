/*
 * Structs that begin with their size: these functions implement the rule of syncguard.h
 * for every options struct of the core and the backends.
 */
#ifndef SYNCGUARD_SYS_OPTIONS_H
#define SYNCGUARD_SYS_OPTIONS_H

#include <stddef.h>

#include "../error.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The size of a struct at the time when member was its last one. Use it as the minimum below, with
 * the last member of the first published version: programs compiled with that version then stay
 * valid when the struct grows. A member that is added later must begin at or after the old sizeof,
 * because padding at the old end has no defined content.
 */
#define SYNCGUARD_SIZE_UP_TO(type, member)                                                         \
    (offsetof(type, member) + sizeof(((const type *)NULL)->member))

/*
 * Copies the caller's struct to *out, which has known_size bytes. Before the call, *out must
 * contain the defaults: they remain for all members that the caller's struct (of an older
 * header) does not have, and if given is NULL for all. minimum is the size that the struct
 * had when it was first published (SYNCGUARD_SIZE_UP_TO). After the call the size in *out is
 * known_size. InvalidArgument if the caller's size is less than minimum, or if a byte
 * beyond known_size is not zero. The message contains name ("options").
 */
SYNCGUARD_API syncguard_status syncguard_struct_read(const void *given, void *out,
                                                     size_t known_size, size_t minimum,
                                                     const char *name, syncguard_error *err);

/* For the _init() functions: fills the caller's struct of size bytes with the defaults (of
 * known_size bytes) and with zeros after them, and sets its first member to size. */
SYNCGUARD_API void syncguard_struct_init(void *out, size_t size, const void *defaults,
                                         size_t known_size);

#ifdef __cplusplus
}
#endif

#endif
