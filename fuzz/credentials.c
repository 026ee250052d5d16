/* Credential files of Firestore, and the key of a service account that they hold. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/firestore/internal.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    syncguard_firestore_options options = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    char path[64];
    fs_auth auth;
    syncguard_error err;
    int fd = memfd_create("credentials", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    options.credentials_file = path;
    memset(&auth, 0, sizeof auth);
    if (sg_fs_auth_init(&auth, &options, false, &err) == SYNCGUARD_OK) {
        char *assertion = NULL;
        FUZZ_CHECK(auth.token_uri != NULL);
        if (auth.kind == FS_AUTH_SERVICE_ACCOUNT &&
            sg_fs_jwt(auth.client, auth.key_id, auth.secret, auth.token_uri, 1700000000, &assertion,
                      &err) == SYNCGUARD_OK)
            FUZZ_CHECK(assertion != NULL);
        sg_fs_wipe(assertion);
        sg_fs_auth_destroy(&auth);
    }
    close(fd);
    return 0;
}
