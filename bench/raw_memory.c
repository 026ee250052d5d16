/* Memory has no client to compare with: a lock id costs one call of getrandom, the rest is the
 * library's. */
#include <sys/random.h>

#include "bench.h"

static void *raw_memory_open(const char *url)
{
    (void)url;
    return calloc(1, 1);
}

static void raw_memory_pair(void *raw, const char *key)
{
    unsigned char id[16];
    (void)raw;
    (void)key;
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id)
        bench_die("getrandom", "failed");
}

const bench_raw bench_raw_memory = {
    .name = "memory",
    .scheme = "memory:",
    .client = "one getrandom",
    .variants = {{"pair", NULL, 1.0}},
    .beyond = true,
    .open = raw_memory_open,
    .close = free,
    .pair = raw_memory_pair,
    .most_connections = 64,
    .remembers = 20000,
};
