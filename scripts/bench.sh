#!/bin/sh
# Runs every bench, one after another: each bench/NAME.cmake has a target bench-NAME.
#
#     bench.sh BUILD [NAME...]
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
[ $# -eq 0 ] || shift
if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046 # names have no blanks
    set -- $(for part in bench/*.cmake; do basename "$part" .cmake; done)
fi
for name in "$@"; do
    echo "== $name"
    cmake --build "$build" --target "bench-$name"
done
