/* The SQLite file: opened, used and closed, whatever it holds. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "fuzz.h"
#include "syncguard.h"
#include "syncguard/sqlite.h"

static bool fuzz_sqlite_info_check(void *context, const syncguard_lock_info_raw *info)
{
    (void)context;
    FUZZ_CHECK(strlen(info->key) < SYNCGUARD_KEY_SIZE);
    return true;
}

static void fuzz_sqlite_backend_use(syncguard_backend *backend)
{
    syncguard_lock_info_raw info;
    bool locked = false;
    /* The results are not checked: every status is allowed. */
    syncguard_status status = syncguard_is_locked(backend, "key", NULL, &locked, NULL);
    status = syncguard_get_by_key_raw(backend, "key", NULL, &info, NULL);
    status = syncguard_get_by_id_raw(backend, "AAAAAAAAAAAAAAAAAAAAAA", NULL, &info, NULL);
    status = syncguard_list_raw(backend, NULL, fuzz_sqlite_info_check, NULL, NULL);
    status = syncguard_extend(backend, "AAAAAAAAAAAAAAAAAAAAAA", 1000, NULL, NULL, NULL);
    syncguard_grant grant;
    if (syncguard_acquire(backend, "key", 1000, NULL, &grant, NULL) == SYNCGUARD_OK) {
        FUZZ_CHECK(strlen(grant.fence) == SYNCGUARD_FENCE_DIGITS);
        status = syncguard_extend(backend, grant.lock_id, 1000, NULL, NULL, NULL);
        status = syncguard_release(backend, grant.lock_id, NULL, NULL);
    }
    status = syncguard_release(backend, "AAAAAAAAAAAAAAAAAAAAAA", NULL, NULL);
    (void)status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const ends[] = {"", "-wal", "-shm", "-journal", ".wake", "-wake"};
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/syncguard-fuzz-%d.db", (int)getpid());
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    own.path = path;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.timeout_ms = 50;
    syncguard_backend *backend = NULL;
    if (syncguard_sqlite_open(&own, &options, &backend, NULL) == SYNCGUARD_OK) {
        fuzz_sqlite_backend_use(backend);
        syncguard_close(backend);
    }
    char name[80];
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(name, sizeof name, "%s%s", path, ends[i]);
        unlink(name);
    }
    return 0;
}
