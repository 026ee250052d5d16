/* A backend as a module: it is linked in or loaded, and found by the scheme of a URL. */
#ifndef SYNCGUARD_SYS_MODULE_H
#define SYNCGUARD_SYS_MODULE_H

#include "../backend.h"
#include "../diagnostics.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Increased by every incompatible change of the headers in sys/. */
#define SYNCGUARD_ABI 8

/*
 * What a module offers. Its shared library libsyncguard-NAME.so exports one
 * constant `syncguard_module_NAME` of this type; static programs pass it to
 * syncguard_module_register (the header of each backend has a function for that).
 *
 * For a third-party module, syncguard_open loads the library for the schemes NAME and NAME+WORD (at
 * most 23 characters: letters, digits, '-', '+'), and only from the folder of libsyncguard. Each
 * '-' of NAME becomes '_' in the name of the constant. docs/guides/write-a-backend.md explains an
 * example.
 */
typedef struct syncguard_module {
    uint32_t abi; /* SYNCGUARD_ABI */
    const char *name;
    const char *const *schemes; /* NULL-terminated */
    /* url is the whole URL; options may be NULL. */
    syncguard_status (*open)(const char *url, const syncguard_options *options,
                             syncguard_backend **out, syncguard_error *err);
    /* See syncguard_setup. May be NULL: nothing to set up. */
    syncguard_status (*setup)(const char *url, const syncguard_options *options,
                              syncguard_print_fn print, void *print_context, syncguard_error *err);
} syncguard_module;

/* Makes the schemes of a linked-in module known to syncguard_open. Idempotent; module must stay
 * valid. InvalidArgument for another ABI. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_module_register(const syncguard_module *module, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
