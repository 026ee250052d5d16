#!/bin/bash
# `make demo` on a store, without its build: every part is shown, nothing is left behind, and the
# output of the build is reduced to one line.
#
#     demo.sh BUILD STORE
set -u
build=$1 store=$2
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
faults=0
fault() {
    echo "FAULT: $*"
    faults=$((faults + 1))
}

TMPDIR=$work/tmp "$top/scripts/demo.sh" "$build" "$store" >"$work/out" 2>&1 || fault "exit code $?"
cat "$work/out"
for line in '^   sh add.sh .* [0-9]+ additions are lost' '^   syncguard run counter .* 40 ' \
    'bob .*held by ann@demo' 'eve .*held by ann@demo' 'joe .*held by ann@demo' \
    '^ *deploy  ann@demo ' 'the program is gone' 'the next holder .* with the fence 6$'; do
    grep -qE "$line" "$work/out" || fault "no line like: $line"
done
[ -z "$(ls -A "$work/tmp")" ] || fault "left behind: $(ls -A "$work/tmp")"

quietly() { "$top/scripts/build-quietly.sh" "$work/log" "$@"; }
[ "$(quietly seq 100 | wc -l)" = 1 ] || fault "a build prints more than one line"
! quietly sh -c 'echo broken; exit 3' >"$work/said" || fault "a build that fails is not noticed"
grep -qx broken "$work/said" || fault "what a build that fails printed is not shown"
exit $((faults > 0))
