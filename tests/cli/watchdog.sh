#!/bin/bash
# Killed or stopped as soon as its program runs, which ignores SIGTERM: the watchdog is there already, and kills the
# program. Each run is one chance to be faster than the watchdog.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

runners=
for signal in KILL STOP; do
    for i in 1 2 3 4 5 6 7 8 9 10; do
        "$SG" run --ttl 900ms "$signal-$i" -- sh -c "trap '' TERM; kill -$signal \$PPID
            echo \$\$ >$signal-$i; exec sleep 60" 2>/dev/null &
        runners="$runners $!"
        until_true 20 test -s "$signal-$i"
    done
done
# shellcheck disable=SC2317 # called by until_true
all_gone() {
    for file in "$1"-*; do
        gone "$(cat "$file")" || return 1
    done
}
check "a command that is killed leaves no program" until_true 10 all_gone KILL
check "a command that is stopped leaves no program" until_true 10 all_gone STOP
# shellcheck disable=SC2046,SC2086 # lists
kill -9 $runners $(cat KILL-* STOP-*) 2>/dev/null
wait
finish
