#!/bin/bash
# A command that is paused past its lease before its program runs does not start it: another owner may have the lock.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# PAUSE=command stops the command when it has started its watchdog. PAUSE=child delays the child just before it executes
# its program, when it reads its parent's process id; this case has no watchdog, which might kill it first.
cat >pause.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static pid_t command;
static int in_child;
__attribute__((constructor)) static void start(void)
{
    const char *pause = getenv("PAUSE");
    command = getpid();
    in_child = pause != NULL && strcmp(pause, "child") == 0;
    unsetenv("LD_PRELOAD");
}
pid_t fork(void)
{
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    if (in_child) {
        errno = EAGAIN;
        return -1;
    }
    pid_t pid = next();
    if (pid > 0)
        raise(SIGSTOP);
    return pid;
}
pid_t getppid(void)
{
    struct timespec pause = {1, 200000000};
    if (getpid() != command && in_child)
        nanosleep(&pause, NULL);
    return (pid_t)syscall(SYS_getppid);
}
C
check "the shim is built" cc -shared -fPIC -o pause.so pause.c -ldl
# A sanitizer's runtime must come first.
preload="$(ldd "$SG" | awk '$1 ~ /^lib[at]san/ { print $3 }') $WORK/pause.so"
# shellcheck disable=SC2317 # called by until_true
stopped() { [ "$(ps -o stat= -p "$1" | cut -c1)" = T ]; }

PAUSE=command LD_PRELOAD=$preload "$SG" run --ttl 300ms k -- touch ran 2>said &
runner=$!
check "it is stopped before the program" until_true 20 stopped $runner
exits "another owner gets the lock" 0 run -w 30s k -- true
check "nothing ran so far" [ ! -e ran ]
kill -CONT $runner
wait $runner
same "the lock was lost" 76 $?
check "the program never ran" [ ! -e ran ]
# A renewal that was stopped in the middle may log how long it took.
check "and it is said" grep -qx "syncguard: the lock 'k' was lost before the command could start" said

PAUSE=child LD_PRELOAD=$preload run_sg run --ttl 1s k -- touch ran
same "a child that is late" 76 "$code"
check "the program never ran" [ ! -e ran ]
same "and it is said" "syncguard: the lock 'k' was lost before the command could start" "$err"
exits "free afterwards" 0 run -n k -- true
finish
