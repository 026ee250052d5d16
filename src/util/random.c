/* Random numbers from the kernel. Early after boot there may be none yet; reading them then fails,
 * because the library may block only in its own waits. */
#include "syncguard/sys/random.h"

#include <errno.h>
#ifdef __linux__
#include <sys/random.h>
#else
#include <unistd.h>
#endif

#include "syncguard/sys/wait.h"

bool syncguard_random_bytes(void *out, size_t size)
{
#ifdef __linux__
    ssize_t got = 0;
    do {
        got = getrandom(out, size, GRND_NONBLOCK);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)size;
#else
    return getentropy(out, size) == 0;
#endif
}

int64_t syncguard_random_below(int64_t limit)
{
    uint64_t drawn = 0;
    if (limit <= 0)
        return 0;
    if (!syncguard_random_bytes(&drawn, sizeof drawn))
        drawn = (uint64_t)syncguard_clock_ns();
    return (int64_t)(drawn % (uint64_t)limit);
}
