#!/bin/bash
# A command that is killed or stopped as soon as its program runs, which ignores SIGTERM: the watchdog is running
# already, and kills the program. Each run is one chance to be faster than the watchdog.
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

# A watchdog that dies is replaced, soon but not in a loop, and the new one knows the group.
"$SG" run --ttl 60s --grace 1s k -- sh -c "trap '' TERM; echo \$\$ >up; exec sleep 60" 2>/dev/null &
runner=$!
until_true 20 test -s up
watchdog_of() { ps -o pid=,stat=,comm= --ppid "$1" | awk '$2 !~ /^Z/ && $3 == "syncguard-watch" { print $1 }'; }
# shellcheck disable=SC2317 # called by until_true
replaced() {
    local now
    now=$(watchdog_of "$runner") # one call: the old one may die between two calls
    [ -n "$now" ] && [ "$now" != "$watchdog" ]
}
begun=$(now_ms)
for i in 1 2 3 4; do
    watchdog=$(watchdog_of "$runner")
    check "there is a watchdog" kill -9 "$watchdog" || break
    check "killed $i times, there is another" until_true 20 replaced || break
done
check "at most one per second" [ $(($(now_ms) - begun)) -ge 2900 ]
check "the program runs on" kill -0 "$(cat up)"
watchdog=$(watchdog_of "$runner")
same "ps tells them apart" "syncguard watchdog of $runner" "$(ps -o args= -p "$watchdog" | sed 's/ *$//')"
check "run keeps its own title" contains "$(ps -o args= -p "$runner")" "run --ttl 60s"
check "the environment is not touched" cmp "/proc/$watchdog/environ" "/proc/$runner/environ"
sleep 0.2 # it learns of the group soon after its start
kill -9 $runner
check "the new watchdog kills the program" until_true 20 gone "$(cat up)"
kill -9 "$(cat up)" 2>/dev/null
wait

# If the arguments have less room than the title, the title is cut.
cp "$(command -v sleep)" s
(exec -a x "$SG" run t ./s 60) &
runner=$!
until_true 20 sh -c "ps -o args= --ppid $runner | grep -q '^./s'"
watchdog=$(watchdog_of "$runner")
same "a short title" "syncguard watc" "$(ps -o args= -p "$watchdog" | sed 's/ *$//')"
check "the environment is whole" cmp "/proc/$watchdog/environ" "/proc/$runner/environ"
kill $runner
wait
finish
