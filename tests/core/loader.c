/* Opens a URL and prints the result; for test_loading.sh. */
#include <stdio.h>

#include "syncguard.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    syncguard_status status = syncguard_open(argv[1], NULL, &backend, &err);
    printf("%s: %s\n", syncguard_status_name(status), err.message);
    syncguard_close(backend);
    return 0;
}
