#!/bin/bash
# scripts/run-tests.sh fails a test that prints a password or token of these servers, and names it.
#     markers.sh SOURCES
set -eu
sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# suite NAME TEXT...: a build folder with a test that prints the text, and the tests that may be repeated.
suite() {
    local name=$1
    shift
    {
        printf 'add_test([=[%s]=] "/bin/echo" "%s")\n' "$name" "$*"
        sed -n 's/^\([^# ][^ ]*\) .*/\1/p' "$sources/tests/timing.txt" | while read -r other; do
            printf 'add_test([=[%s]=] "true")\n' "$other"
            printf 'set_tests_properties([=[%s]=] PROPERTIES LABELS timing)\n' "$other"
        done
    } >"$work/CTestTestfile.cmake"
}

# expect CODE TEXT: checks the output of run-tests.sh. None of it is shown here: the search would find it again.
expect() {
    local code=0
    JOBS=1 "$sources/scripts/run-tests.sh" "$work" >"$work/said" 2>&1 || code=$?
    if [ $code -ne "$1" ] || ! grep -qF "$2" "$work/said"; then
        echo "FAILED: exit code $code instead of $1, or it does not say '${2%%(*}'"
        failed=1
    fi
}

suite quiet nothing to hide
expect 0 "1 passed, 0 failed"
for marker in pw-marker- fake_server-token- M4rk3dK3y; do
    suite talker "a line with redis://user:${marker}1@host in it"
    expect 1 "printed a secret ($marker): talker"
    grep -q ' 1 failed' "$work/said" || failed=1
done
# The servers have such passwords.
for file in tests/servers/redis.py tests/redis/test_rights.c tests/postgres/test_faults.c; do
    grep -q 'pw-marker-' "$sources/$file" || {
        echo "FAILED: no password with the marker in $file"
        failed=1
    }
done
exit $failed
