#!/bin/sh
# No tolerance is written into scripts and statements: what the timeline cannot reach, such as the
# renewal of many locks, gets it as an argument too. A thousand stands there for milliseconds only.
#     no_tolerance_copies.sh BACKENDS
set -eu
copies=$(sed -E 's/time\[1\] \* 1000//; s/time\[2\] \/ 1000//; s/clock_timestamp\(\)\) \* 1000//' \
    "$1"/redis/scripts/*.lua "$1"/postgres/sql.c | grep -nE '\b(1000|1e3)\b' || true)
if [ -n "$copies" ]; then
    echo "a number that may be the tolerance: $copies"
    exit 1
fi
# Checks that both folders were read.
grep -q 'time\[1\] \* 1000' "$1"/redis/scripts/acquire.lua
grep -q 'clock_timestamp()) \* 1000' "$1"/postgres/sql.c
