#!/bin/sh
# Runs a build on one line of output: a counter on a terminal, then the time it took. The output of the
# build is in LOG, and is shown if the build failed.
#
#     build-quietly.sh LOG COMMAND [ARGUMENT...]
set -eu
log=$1
shift
mkdir -p "$(dirname "$log")"
started=$(date +%s)
"$@" >"$log" 2>&1 &
build=$!
trap 'kill $build 2>/dev/null; exit 130' INT TERM
while [ -t 1 ] && kill -0 $build 2>/dev/null; do
    # ninja prints [3/120], make [ 12%].
    printf '\r\033[KBuilding %s' "$(tail -n 1 "$log" | sed -n 's/^\(\[[0-9/ %]*\]\).*/\1/p')"
    sleep 0.2
done
if ! wait $build; then
    cat "$log"
    exit 1
fi
[ ! -t 1 ] || printf '\r\033[K'
echo "Built in $(($(date +%s) - started)) s; what the compiler said is in $log"
