#!/bin/sh
# clang-tidy over one file, without its count of suppressed warnings in system headers.
#
#     tidy-one.sh BUILD FILE
case $2 in
*/core/error.c) hints= ;; # defines what the hints wrap
*) hints=--extra-arg=-include$PWD/scripts/tidy-hints.h ;;
esac
# shellcheck disable=SC2086 # one word or none
output=$(clang-tidy -p "$1" --quiet $hints "$2" 2>&1)
status=$?
output=$(printf '%s\n' "$output" | grep -v -e '^[0-9]* warnings\? generated' -e '^Suppressed' -e '^$')
[ -z "$output" ] || printf '%s\n' "$output"
exit $status
