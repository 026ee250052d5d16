/*
 * Fake modules, for test_loading.sh. FAKE_NAME is the module's name, FAKE_SCHEME one more scheme of
 * it. With FAKE_ABI it was built for another library; without FAKE_NAME it is not a module at all.
 * Each prints a line when it is fake_module_loaded.
 */
#include <stdio.h>

#include "syncguard/sys/backend.h"

__attribute__((constructor)) static void fake_module_loaded(void)
{
    puts("[fake module]");
}

#ifdef FAKE_NAME
#ifndef FAKE_ABI
#define FAKE_ABI SYNCGUARD_ABI
#endif

static syncguard_status open_fake(const char *url, const syncguard_options *options,
                                  syncguard_backend **out, syncguard_error *err)
{
    (void)url;
    (void)options;
    (void)out;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "the fake was asked");
}

#define JOIN(a, b) a##b
#define SYMBOL(name) JOIN(syncguard_module_, name)
#define WORD(name) #name
#define TEXT(name) WORD(name)

static const char *const schemes[] = {TEXT(FAKE_NAME), FAKE_SCHEME, NULL};

SYNCGUARD_API extern const syncguard_module SYMBOL(FAKE_NAME);
const syncguard_module SYMBOL(FAKE_NAME) = {FAKE_ABI, TEXT(FAKE_NAME), schemes, open_fake, NULL};
#endif
