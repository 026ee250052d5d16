#!/bin/sh
# clang-tidy over one file, without its count of suppressed warnings in system headers.
#
#     tidy-one.sh BUILD FILE
output=$(clang-tidy -p "$1" --quiet "$2" 2>&1)
status=$?
output=$(printf '%s\n' "$output" | grep -v -e '^[0-9]* warnings\? generated' -e '^Suppressed' -e '^$')
[ -z "$output" ] || printf '%s\n' "$output"
exit $status
