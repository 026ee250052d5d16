#!/bin/bash
# The work of an operator: find the holder of a key, release the lock, and check that the holder
# ends.
# shellcheck disable=SC2016 # the child expands it
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

"$SG" run --ttl 3s --owner 'ci@build7:311' deploy -- sh -c 'echo up >up; exec sleep 60' 2>holder_err &
holder=$!
check "held" until_true 20 test -s up
exits "who holds it" 0 list 'dep*'
check "the owner" contains "$out" 'ci@build7:311'
id=$("$SG" status --raw deploy | sed -n 's/^lockId: //p')

exits "--key alone changes nothing" 64 release --key deploy
check "still held" held deploy
exits "--force" 0 release --key deploy --force
same "nothing on stdout" "" "$out"
check "says whose it was" contains "$err" "released 'deploy': ci@build7:311 had held it for"
check "says when the holder learns of it" contains "$err" 'its next renewal, normally within'
time='[0-9-]{10}T[0-9:]{8}Z'
check "an audit line" grep -Eqx "syncguard: audit: time=$time operator=\"$(id -un)@.*\" \
action=force-release store=\"sqlite:$WORK/locks.db\" key=\"deploy\" owner=\"ci@build7:311\" fence=000000000000001 result=released" err
check "one before the release" grep -Eqx "syncguard: audit: time=$time .* fence=000000000000001 result=requested" err
check "never the id" lacks "$err" "$id"
check "free" free deploy
wait $holder
same "the holder is ended" 76 $?
exits "it is not held" 1 release --key deploy --force
check "says so" contains "$err" "'deploy' is not held"
check "no audit line of nothing" lacks "$err" audit

# A lease of a minute: a holder that renews it learns of the release within 20 s, any other not at all.
exits "a holder that does not renew" 0 acquire --ttl 60s unattended
exits "release" 0 release --key unattended --force
check "a third of what is left" grep -Eq 'its next renewal, normally within (1[0-9]|20)s$' err
check "and without renewals" grep -Eq 'does not .*it is not told, and its lease ends in ([345][0-9]s|1m00s)$' err

# The operator's name comes from the system, not from the environment. A key or an owner cannot
# forge a field or control a terminal.
exits "acquire" 0 acquire --owner $'x" result=none \x1b[31m' $'a"b\nc'
USER=forged LOGNAME=forged exits "release" 0 release --key $'a"b\nc' --force
check "operator" lacks "$err" forged
check "quotes" contains "$err" 'key="a\x22b\x0ac" owner="x\x22 result=none \x1b[31m"'
same "no escape" 0 "$(LC_ALL=C grep -c $'\x1b' err)"
same "five lines" 5 "$(wc -l <err)"

# --syslog: a preloaded library replaces syslog and records the calls.
cat >shim.c <<'C'
#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>
static void put(int priority, const char *format, va_list list)
{
    FILE *out = fopen("syslog", "a");
    fprintf(out, "<%d>", priority);
    vfprintf(out, format, list);
    fputs("\n", out);
    fclose(out);
}
void syslog(int priority, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    put(priority, format, list);
    va_end(list);
}
void __syslog_chk(int priority, int flag, const char *format, ...)
{
    va_list list;
    (void)flag;
    va_start(list, format);
    put(priority, format, list);
    va_end(list);
}
C
if cc -shared -fPIC -U_FORTIFY_SOURCE -o shim.so shim.c 2>/dev/null; then
    # A sanitizer's runtime must come first.
    preload="$(ldd "$SG" | awk '$1 ~ /^lib[at]san/ { print $3 }') $WORK/shim.so"
    exits "acquire" 0 acquire --owner me logged
    LD_PRELOAD=$preload run_sg release --key logged --force
    check "nothing without --syslog" [ ! -e syslog ]
    exits "acquire" 0 acquire --owner me logged
    LD_PRELOAD=$preload run_sg release --key logged --force --syslog
    same "two lines in syslog" 2 "$(wc -l <syslog)"
    check "syslog has the same line" \
        grep -Eq '^<[0-9]+>audit: time=.* key="logged" owner="me" fence=000000000000002 result=released$' syslog
fi

# Between the lookup and the release the holder releases, and another owner acquires: the new lock stays.
cat >between.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
int syncguard_release(void *backend, const char *lock_id, const void *call, void *err)
{
    int (*release)(void *, const char *, const void *, void *) = dlsym(RTLD_NEXT, "syncguard_release");
    unsetenv("LD_PRELOAD");
    setenv("SEEN", lock_id, 1);
    if (system("\"$SG\" release \"$SEEN\" && \"$SG\" acquire --owner second moved >second.id") != 0)
        abort();
    return release(backend, lock_id, call, err);
}
C
if cc -shared -fPIC -U_FORTIFY_SOURCE -o between.so between.c -ldl 2>/dev/null; then
    exits "acquire" 0 acquire --owner first moved
    SG=$SG LD_PRELOAD="$(ldd "$SG" | awk '$1 ~ /^lib[at]san/ { print $3 }') $WORK/between.so" \
        run_sg release --key moved --force
    same "the lock that was seen is gone" 1 "$code"
    check "says so" contains "$err" "'moved' was released by its holder meanwhile"
    check "audited" grep -Eq 'key="moved" owner="first" fence=000000000000001 result=absent$' err
    exits "the new lock" 0 status --raw moved
    check "is held by its owner" contains "$out" "owner: second"
    check "with the next fence" contains "$out" "fence: 000000000000002"
    same "under its id" "$(sed -n 's/^lockId: //p' second.id)" "$(sed -n 's/^lockId: //p' out)"
else
    check "the library between the command and its own is built" false
fi

# The name of the user is known without the environment, too.
env -u USER -u LOGNAME "$SG" acquire named >/dev/null
same "owner" "$(id -un)" "$("$SG" status named | sed -n 's/^owner: \(.*\)@.*/\1/p')"
finish
