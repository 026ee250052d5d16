/* The environment, which a privileged program must not trust. No state. */
#include "syncguard/sys/environment.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "syncguard/sys/fail.h"

bool syncguard_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

const char *syncguard_environment(const char *name)
{
    const char *value = syncguard_privileged() ? NULL : getenv(name);
    return value != NULL && *value != 0 ? value : NULL;
}

syncguard_status syncguard_environment_refuse(const char *prefix, syncguard_error *err)
{
    size_t length = strlen(prefix);
    for (char **at = environ; syncguard_privileged() && at != NULL && *at != NULL; at++) {
        if (strncmp(*at, prefix, length) == 0)
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "an environment variable %s... is set, which a setuid program "
                                  "must remove first",
                                  prefix);
    }
    return SYNCGUARD_OK;
}
