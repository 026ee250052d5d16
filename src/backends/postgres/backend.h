/*
 * The handle of the PostgreSQL backend.
 */
#ifndef SG_PG_BACKEND_H
#define SG_PG_BACKEND_H

#include <sys/types.h>

#include "notify.h"
#include "pool.h"
#include "result.h"
#include "sql.h"
#include "syncguard/sys/backend.h"

typedef struct sg_pg {
    syncguard_backend base;
    sg_pg_pool *pool;
    sg_pg_listener *listener; /* NULL: listening is turned off */
    sg_pg_statements statements;
    pid_t pid;                /* the process that opened the connections of the pool */
    bool pooler;              /* option pooler */
    atomic_bool pooler_found; /* without the option, but a pooler was found: treated alike */
    atomic_bool queue_full;   /* the notification queue of the server was full at least once */
    char tolerance[SG_PG_NUMBER_SIZE];
    char fence_max[SG_PG_NUMBER_SIZE];
} sg_pg;

static inline sg_pg *sg_pg_of(syncguard_backend *backend)
{
    return (sg_pg *)(void *)backend;
}

#endif
