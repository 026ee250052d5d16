/* The modules of this project. */
#ifndef SG_MODULES_H
#define SG_MODULES_H

#include "syncguard/sys/backend.h"

/* The memory backend, which is linked into the core. */
extern const syncguard_module sg_memory_module;

/* Which of the others to load for the scheme of a URL. Other schemes name their module
 * (core/module.c). */
static const struct {
    const char *scheme;
    const char *module;
} sg_schemes[] = {
    {"sqlite", "sqlite"},        {"redis", "redis"},         {"rediss", "redis"},
    {"redis+sentinel", "redis"}, {"redis+cluster", "redis"}, {"redis+unix", "redis"},
    {"postgres", "postgres"},    {"postgresql", "postgres"}, {"firestore", "firestore"},
};

#endif
