#!/bin/bash
# Exit code 71: out of memory. Between too little memory to start at all and enough of it there is a size
# at which the store cannot be opened.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

exits "there is something to list" 0 acquire k
found=
for ((kib = 3000; kib < 20000; kib += 40)); do
    code=0
    (ulimit -v $kib && exec "$SG" list) >out 2>err || code=$?
    case $code in
    0) break ;;
    71)
        found=$(cat err)
        break
        ;;
    esac
done
same "memory ran out" 71 "$code"
check "says so" contains "$found" OutOfMemory
check "one line" one_line "$found"
finish
