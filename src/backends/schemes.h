/* Which module to load for the scheme of a URL: known before the module is. */
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
