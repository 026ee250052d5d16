#!/bin/sh
# The table in README.md names every test of the suite, and no other test. --test counts the tests that it runs, and
# failing assertions about times show the figure.
#     check_table.sh PROGRAM README
set -eu
program=$1
readme=$2
failed=0
names=$("$program" --list | cut -d' ' -f2)
for name in $names; do
    if ! grep -qw "$name" "$readme"; then
        echo "README.md does not name $name"
        failed=1
    fi
done
# Words with at least two underscores are names of tests, here or in the files named beside them.
# shellcheck disable=SC2013 # splitting into words is intended
for word in $(grep '^|' "$readme" | sed 's,tests/[a-z_/]*[.]c,,g' | grep -oE '\b[a-z0-9]+(_[a-z0-9]+){2,}\b' | sort -u); do
    if ! printf '%s\n' "$names" | grep -qx "$word" &&
        ! grep -rqw "$word" "$(dirname "$readme")/../core"; then
        echo "README.md names $word, which is no test"
        failed=1
    fi
done

said=$("$program" --test 'bad_*' memory: | tail -n 1)
expected=$(printf '%s\n' "$names" | grep -c '^bad_')
case $said in
"contract: $expected tests, 0 failed, "*) ;;
*)
    echo "--test 'bad_*' runs $expected tests, but says: $said"
    failed=1
    ;;
esac
if "$program" --test 'no_such_*' memory: 2>/dev/null; then
    echo "--test with a pattern that matches nothing succeeds"
    failed=1
fi
if grep -nE 'assert_true\(.*(_ms|_us|now_ms\(\)|took|ended|expires|remaining)\b.* (<|>|<=|>=) ' \
    "$(dirname "$readme")"/test_*.c; then
    echo "these show no figure when they fail: use assert_between, assert_at_least or assert_at_most"
    failed=1
fi
exit $failed
