/* Which module of this project to load for the scheme of a URL: known before the module is. Other
 * schemes name their module (core/module.c). */
#ifndef SG_SCHEMES_H
#define SG_SCHEMES_H

static const struct {
    const char *scheme;
    const char *module;
} sg_schemes[] = {
    {"sqlite", "sqlite"},        {"redis", "redis"},         {"rediss", "redis"},
    {"redis+sentinel", "redis"}, {"redis+cluster", "redis"}, {"redis+unix", "redis"},
    {"postgres", "postgres"},    {"postgresql", "postgres"}, {"firestore", "firestore"},
};

#endif
