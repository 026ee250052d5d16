#!/bin/sh
# The table in README.md names every test of the suite, and no test that is not there.
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
# shellcheck disable=SC2013 # words are what is wanted
for word in $(grep '^|' "$readme" | sed 's,tests/[a-z_/]*[.]c,,g' | grep -oE '\b[a-z0-9]+(_[a-z0-9]+){2,}\b' | sort -u); do
    if ! printf '%s\n' "$names" | grep -qx "$word" &&
        ! grep -rqw "$word" "$(dirname "$readme")/../core"; then
        echo "README.md names $word, which is no test"
        failed=1
    fi
done
exit $failed
