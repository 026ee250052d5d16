/*
 * Structs that begin with their size: the rule of syncguard.h in one place, for
 * every options struct of core and backends.
 */
#ifndef SYNCGUARD_SYS_OPTIONS_H
#define SYNCGUARD_SYS_OPTIONS_H

#include <stddef.h>

#include "../error.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The size of a struct when member was its last: what its first published version is read with,
 * so that programs compiled against it stay valid when the struct grows. A member that is added
 * later must begin at or after the old sizeof: padding at the old end has no defined content.
 */
#define SYNCGUARD_SIZE_UP_TO(type, member)                                                         \
    (offsetof(type, member) + sizeof(((const type *)NULL)->member))

/*
 * Reads a struct of the caller into one of known_size bytes. *out comes filled
 * with the defaults, which stay where the caller's struct (of an older header)
 * ends; given == NULL leaves all of them. minimum is the size that the struct
 * had when it was first published (SYNCGUARD_SIZE_UP_TO). Afterwards out's own size is known_size.
 * InvalidArgument for a size below minimum, and for anything but zeros beyond
 * known_size. name is shown in the message ("options").
 */
SYNCGUARD_API syncguard_status syncguard_struct_read(const void *given, void *out,
                                                     size_t known_size, size_t minimum,
                                                     const char *name, syncguard_error *err);

/* For the _init() twins: writes defaults (of known_size bytes) into a struct of which the caller
 * knows size bytes, zeros beyond what the library knows, and size into its first member. */
SYNCGUARD_API void syncguard_struct_init(void *out, size_t size, const void *defaults,
                                         size_t known_size);

#ifdef __cplusplus
}
#endif

#endif
