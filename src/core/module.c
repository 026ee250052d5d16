/*
 * Finding the backend of a URL: built in, registered, or loaded from the folder
 * of this library. A list names the modules of this project; any other scheme
 * NAME or NAME+WORD means libsyncguard-NAME.so. A user who can write to the folder
 * can replace this library, too, so its files are trusted in the same way.
 *
 * The registry is the second piece of mutable global state of the library: an
 * array whose entries change from empty to filled once, without a mutex, so that
 * it is always consistent, even in a child forked at any moment. Modules are
 * never unloaded: their threads may be running.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#ifndef SYNCGUARD_STATIC
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>
#endif

#include "backends/modules.h"
#include "core/default_url.h"
#include "core/text.h"
#include "syncguard/sys/backend.h"
#include "syncguard/sys/url.h"

#define MAX_MODULES 16
#define SCHEME_SIZE 24

/* Shown to users who mistyped a scheme. */
#define KNOWN_SCHEMES                                                                              \
    "sqlite:, redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster://, "           \
    "postgres://, firestore:// or memory:"

#define module_refuse(err, ...) syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, __VA_ARGS__)

static _Atomic(const syncguard_module *) registry[MAX_MODULES];

static bool module_has_scheme(const syncguard_module *module, const char *scheme)
{
    for (const char *const *s = module->schemes; *s != NULL; s++) {
        if (strcmp(*s, scheme) == 0)
            return true;
    }
    return false;
}

static const syncguard_module *module_find_registered(const char *scheme)
{
    if (module_has_scheme(&sg_memory_module, scheme))
        return &sg_memory_module;
    for (int i = 0; i < MAX_MODULES; i++) {
        const syncguard_module *module = atomic_load_explicit(&registry[i], memory_order_acquire);
        if (module == NULL)
            return NULL;
        if (module_has_scheme(module, scheme))
            return module;
    }
    return NULL;
}

syncguard_status syncguard_module_register(const syncguard_module *module, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (module == NULL || module->abi != SYNCGUARD_ABI)
        return module_refuse(err, "the module was built for another version of the library");
    if (module->name == NULL || module->schemes == NULL || module->open == NULL)
        return module_refuse(err, "the module is incomplete");
    for (int i = 0; i < MAX_MODULES; i++) {
        const syncguard_module *there = NULL;
        if (atomic_compare_exchange_strong(&registry[i], &there, module) || there == module)
            return SYNCGUARD_OK;
    }
    return module_refuse(err, "too many modules");
}

#ifdef SYNCGUARD_STATIC
static syncguard_status module_load_by_name(const char *name, const syncguard_module **out,
                                            syncguard_error *err)
{
    (void)out;
    return module_refuse(err,
                         "the backend %s is not part of this program: link its archive and call "
                         "syncguard_%s_register first",
                         name, name);
}

static syncguard_status module_load_by_scheme(const char *scheme, const syncguard_module **out,
                                              syncguard_error *err)
{
    (void)out;
    return module_refuse(err, "the scheme %s is not known; use " KNOWN_SCHEMES, scheme);
}
#else
/*
 * The module's file is beside this library. If the library itself was loaded by a
 * relative name, its folder is unknown: the name depends on a former working
 * directory, and the current one must not be searched.
 */
static bool module_find_file(const char *name, const char *suffix, char *path, size_t size)
{
    Dl_info here;
    if (dladdr((const void *)registry, &here) == 0 || here.dli_fname == NULL ||
        here.dli_fname[0] != '/')
        return false;
    const char *slash = strrchr(here.dli_fname, '/');
    int length = snprintf(path, size, "%.*s/libsyncguard-%s%s", (int)(slash - here.dli_fname),
                          here.dli_fname, name, suffix);
    return length > 0 && (size_t)length < size && access(path, F_OK) == 0;
}

#define OTHER_VERSION "another version of the library: install both from the same version"

static syncguard_status module_load_file(const char *name, const char *path,
                                         const syncguard_module **out, syncguard_error *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        const char *wanted = why != NULL ? strstr(why, "SYNCGUARD_SYS_") : NULL;

        /* The dynamic loader looks for the symbols of the module's version before its ABI number
         * can be read. The loader's text names two files, and there is room for one. */
        if (wanted != NULL)
            return module_refuse(err, "%s was built for " OTHER_VERSION " (it needs %.*s)", path,
                                 (int)strcspn(wanted, "' ,)"), wanted);
        return module_refuse(err, "the backend's module cannot be loaded: %s",
                             why != NULL ? why : name);
    }
    char symbol[64];
    snprintf(symbol, sizeof symbol, "syncguard_module_%s", name);
    char *dash;
    while ((dash = strchr(symbol, '-')) != NULL)
        *dash = '_';
    const syncguard_module *module = dlsym(handle, symbol);
    if (module == NULL)
        return module_refuse(err, "the file of the backend %s is no module: it has no %s", name,
                             symbol);
    if (module->abi != SYNCGUARD_ABI)
        return module_refuse(err, "%s was built for " OTHER_VERSION " (ABI %d, here %d)", path,
                             (int)module->abi, SYNCGUARD_ABI);
    syncguard_status status = syncguard_module_register(module, err);
    if (status == SYNCGUARD_OK)
        *out = module;
    return status;
}

static syncguard_status module_load_by_name(const char *name, const syncguard_module **out,
                                            syncguard_error *err)
{
    char path[PATH_MAX];
    if (!module_find_file(name, ".so.0", path, sizeof path))
        return module_refuse(err, "the backend %s is not installed", name);
    return module_load_file(name, path, out, err);
}

/* A scheme has no '/', and one with a '.' is refused: a file name that is made from it cannot leave
 * its folder or end in another suffix. */
static syncguard_status module_load_by_scheme(const char *scheme, const syncguard_module **out,
                                              syncguard_error *err)
{
    char name[SCHEME_SIZE];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(scheme, "+"), scheme);
    char path[PATH_MAX];
    if (strchr(scheme, '.') != NULL || !module_find_file(name, ".so", path, sizeof path))
        return module_refuse(err,
                             "the scheme %s is not known: no libsyncguard-%s.so is installed; "
                             "use " KNOWN_SCHEMES,
                             scheme, name);
    syncguard_status status = module_load_file(name, path, out, err);
    if (status != SYNCGUARD_OK || module_has_scheme(*out, scheme))
        return status;
    *out = NULL;
    return module_refuse(err, "the backend %s does not know the scheme %s", name, scheme);
}
#endif

/* Copies the scheme of url in lower case. */
static syncguard_status module_read_scheme(const char *url, char scheme[SCHEME_SIZE],
                                           syncguard_error *err)
{
    const char *colon = sg_scheme_end(url);
    if (colon == NULL)
        return module_refuse(err, "the URL does not begin with a scheme such as sqlite: or redis:");
    size_t length = (size_t)(colon - url);
    if (length >= SCHEME_SIZE)
        return module_refuse(err,
                             "the scheme of the URL is not known: it is longer than %d characters",
                             SCHEME_SIZE - 1);
    for (size_t i = 0; i < length; i++)
        scheme[i] = (char)sg_ascii_lower(url[i]);
    scheme[length] = '\0';
    return SYNCGUARD_OK;
}

static syncguard_status module_find_by_url(const char *url, const syncguard_module **out,
                                           syncguard_error *err)
{
    if (strnlen(url, SYNCGUARD_URL_MAX_BYTES + 1) > SYNCGUARD_URL_MAX_BYTES)
        return module_refuse(err, "the URL is too long");
    char scheme[SCHEME_SIZE];
    syncguard_status status = module_read_scheme(url, scheme, err);
    if (status != SYNCGUARD_OK)
        return status;
    *out = module_find_registered(scheme);
    if (*out != NULL)
        return SYNCGUARD_OK;
    for (size_t i = 0; i < sizeof sg_schemes / sizeof *sg_schemes; i++) {
        if (strcmp(sg_schemes[i].scheme, scheme) == 0)
            return module_load_by_name(sg_schemes[i].module, out, err);
    }
    return module_load_by_scheme(scheme, out, err);
}

syncguard_status syncguard_open(const char *url, const syncguard_options *options,
                                syncguard_backend **out, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return module_refuse(err, "out must be given");
    *out = NULL;
    char fallback[SYNCGUARD_URL_MAX_BYTES + 1];
    syncguard_status status;
    if (url == NULL) {
        bool embedded = false;
        status = sg_default_url(fallback, sizeof fallback, &embedded, err);
        if (status == SYNCGUARD_OK && embedded)
            status = sg_default_folders(err);
        if (status != SYNCGUARD_OK)
            return status;
        url = fallback;
    }
    const syncguard_module *module = NULL;
    status = module_find_by_url(url, &module, err);
    if (module != NULL)
        status = module->open(url, options, out, err);
    if (url == fallback)
        explicit_bzero(fallback, sizeof fallback); /* it may hold a password */
    return status;
}

syncguard_status syncguard_setup(const char *url, const syncguard_options *options,
                                 syncguard_print_fn print, void *print_context,
                                 syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    char fallback[SYNCGUARD_URL_MAX_BYTES + 1];
    syncguard_status status;
    if (url == NULL) {
        status = syncguard_default_url(fallback, sizeof fallback, err);
        if (status != SYNCGUARD_OK)
            return status;
        url = fallback;
    }
    const syncguard_module *module = NULL;
    status = module_find_by_url(url, &module, err);
    if (module != NULL && module->setup != NULL)
        status = module->setup(url, options, print, print_context, err);
    if (url == fallback)
        explicit_bzero(fallback, sizeof fallback);
    return status;
}
