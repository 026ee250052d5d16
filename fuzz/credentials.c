/* Credential files of Firestore, and the key of a service account that they hold. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/firestore/credentials.h"
#include "backends/firestore/token.h"
#include "fuzz.h"
#include "syncguard/sys/alloc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    syncguard_firestore_options options = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    char path[64];
    int fd = memfd_create("credentials", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    options.credentials_file = path;
    sg_firestore_credentials c;
    syncguard_error err;
    if (sg_firestore_credentials_read(&c, &options, false, &err) == SYNCGUARD_OK) {
        char *assertion = NULL;
        FUZZ_CHECK(c.token_uri != NULL);
        if (c.kind == SG_FIRESTORE_SERVICE_ACCOUNT &&
            sg_firestore_jwt(c.client, c.key_id, c.secret, c.token_uri, 1700000000, &assertion,
                             &err) == SYNCGUARD_OK)
            FUZZ_CHECK(assertion != NULL);
        syncguard_free_secret(assertion);
        sg_firestore_credentials_destroy(&c);
    }
    close(fd);
    return 0;
}
