#!/bin/bash
# syncguard run: fences, waiting, exit codes, environment, signals. Expressions in single quotes are for
# the child's shell.
# shellcheck disable=SC2016
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

exits "first grant" 0 run k -- sh -c 'echo $SYNCGUARD_FENCE'
same "first fence" 000000000000001 "$out"
exits "second grant" 0 run k sh -c 'echo $SYNCGUARD_FENCE'
same "second fence" 000000000000002 "$out"
exits "free afterwards" 1 status k

# The child's environment.
export SYNCGUARD_FENCE=stale
exits "environment" 0 run $'cafe\xcc\x81' -- env
check "key in NFC" contains "$out" $'SYNCGUARD_KEY=caf\xc3\xa9'
check "lock id" grep -Eqx 'SYNCGUARD_LOCK_ID=[A-Za-z0-9_-]{22}' out
check "expiry" grep -Eqx 'SYNCGUARD_EXPIRES_AT_MS=[0-9]{13}' out
same "fence once, ours" SYNCGUARD_FENCE=000000000000001 "$(grep ^SYNCGUARD_FENCE= out)"
unset SYNCGUARD_FENCE
same "stdin" "hello" "$(echo hello | "$SG" run k cat)"
same "no descriptor of ours" "$(sh -c 'ls /proc/self/fd')" "$("$SG" run k -- sh -c 'ls /proc/self/fd')"

# Exit codes.
for wanted in 0 1 7 64 255; do
    exits "code $wanted comes through" $wanted run k -- sh -c "exit $wanted"
done
for number in 1 2 9 15; do
    exits "signal $number comes through" $((128 + number)) run k -- sh -c "kill -$number \$\$"
done
exits "not found" 127 run k -- ./nothing-there
check "not found: says so" contains "$err" nothing-there
touch plain
exits "not executable" 126 run k -- ./plain
exits "a folder" 126 run k -- "$WORK"
exits "free after failures" 1 status k

# Contention.
"$SG" run k -- sleep 60 &
holder=$!
until_true 20 held k
begun=$(now_ms)
exits "-n" 1 run -n k -- touch ran
check "-n is quick" [ $(($(now_ms) - begun)) -lt 5000 ]
check "-n says who holds it, once" one_line "$err"
exits "-n -q" 1 run -n -q k -- touch ran
same "-n -q is quiet" "" "$err"
exits "-n -v" 1 run -n -v k -- touch ran
check "-n -v names the holder" contains "$err" "'k' is held by tester@"
exits "-n -E" 9 run -n -E 9 k -- touch ran
begun=$(now_ms)
exits "-w 1" 75 run -w 1 k -- touch ran
took=$(($(now_ms) - begun))
check "-w 1 waits about a second, not $took ms" [ $took -ge 950 ]
check "-w 1 does not wait for ever, not $took ms" [ $took -le 15000 ]
exits "-w -E" 9 run -w 100ms -E 9 k -- touch ran
exits "another key" 0 run -n other -- true
check "no program ran" [ ! -e ran ]

# Signals end the waiting at once.
for name in TERM INT HUP; do
    rm -f waiting
    # A background job of a shell without job control ignores SIGINT: restore the default.
    python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$SG" run -v k -- touch ran 2>waiting &
    waiter=$!
    until_true 20 grep -q waiting waiting
    begun=$(now_ms)
    kill -$name $waiter
    wait $waiter
    code=$?
    same "SIG$name while waiting" $((128 + $(kill -l $name))) $code
    check "SIG$name ends it soon" [ $(($(now_ms) - begun)) -lt 5000 ]
done
check "no program ran" [ ! -e ran ]

# A waiter gets the lock when the holder is done, and the holder exits as its child does.
"$SG" run k -- sh -c 'echo $SYNCGUARD_FENCE' >next &
waiter=$!
sleep 0.3
kill -TERM $holder
wait $holder
same "SIGTERM goes to the child" 143 $?
wait $waiter
same "the waiter ran" 0 $?
check "with a fence" grep -Eqx '[0-9]{15}' next

# SIGTERM is passed on to the whole group; the child's exit code is passed on.
"$SG" run k -- sh -c 'trap "echo bye; exit 5" TERM; echo $$ >up; while :; do sleep 0.05; done' >said &
holder=$!
until_true 20 test -s up
kill -TERM $holder
wait $holder
same "the child's own code" 5 $?
same "it could clean up" bye "$(cat said)"
exits "released" 1 status k
rm up
"$SG" run k -- sh -c 'trap "echo hup >>got" HUP; trap "echo usr1 >>got" USR1; echo $$ >up
    while [ "$(wc -l <got)" -lt 2 ]; do sleep 0.05; done; exit 3' 2>/dev/null &
holder=$!
: >got
until_true 20 test -s up
kill -USR1 $holder
until_true 20 has_lines got 1
kill -HUP $holder
wait $holder
same "other signals" 3 $?

# SIGHUP, SIGUSR1 and SIGUSR2 go to the program only; its workers may have no handler.
for name in HUP USR1 USR2; do
    rm -f up worker got
    "$SG" run k -- sh -c 'sleep 60 & echo $! >worker; trap "echo got >got" '$name'; echo $$ >up
        until [ -s got ]; do sleep 0.05; done; kill -0 "$(cat worker)" && exit 3' &
    holder=$!
    check "SIG$name: it runs" until_true 20 test -s up
    kill -$name $holder
    wait $holder
    same "SIG$name: the worker lives" 3 $?
    check "SIG$name: still" kill "$(cat worker)"
    # If the program dies of such a signal, its group is killed.
    rm -f up worker
    "$SG" run k -- sh -c 'sleep 60 & echo $! >worker; echo $$ >up; wait; sleep 60' &
    holder=$!
    check "SIG$name: it runs" until_true 20 test -s up
    kill -$name $holder
    wait $holder
    code=$?
    same "SIG$name: the program dies" $((128 + $(kill -l $name))) $code
    check "SIG$name: and its worker" until_true 10 gone "$(cat worker)"
done
# A signal that arrives before the program runs is not passed on.
rm -f up
"$SG" run k -- sh -c 'echo $$ >up; exec sleep 60' &
holder=$!
check "held" until_true 20 test -s up
"$SG" run -v k -- sh -c 'sleep 0.5; exit 6' 2>waiting &
waiter=$!
check "it waits" until_true 20 grep -q waiting waiting
kill -USR1 $waiter
kill -USR2 $waiter
kill -TERM $holder
wait $holder
wait $waiter
same "the program runs" 6 $?

# Signals that the command needs may be blocked when it starts; the child gets the original mask.
begun=$(now_ms)
timeout -s KILL 30 env --block-signal=CHLD "$SG" run --ttl 6s --on-lost warn k -- true
same "SIGCHLD blocked, only warned" 0 $?
timeout -s KILL 30 env --block-signal=CHLD "$SG" run --ttl 60s k -- true
same "SIGCHLD blocked" 0 $?
check "the end of the child is noticed" [ $(($(now_ms) - begun)) -lt 10000 ]
for name in CHLD CONT TERM; do
    same "SIG$name is blocked in the child" "$(env --block-signal=$name grep SigBlk /proc/self/status)" \
        "$(timeout -s KILL 30 env --block-signal=$name "$SG" run --ttl 6s k -- grep SigBlk /proc/self/status)"
done
# shellcheck disable=SC2317 # called by until_true
stopped() { [ "$(ps -o stat= -p "$1" | cut -c1)" = T ]; }
rm -f up
env --block-signal=CONT "$SG" run k -- sh -c 'echo $$ >up; kill -STOP $$; exit 4' &
holder=$!
until_true 20 test -s up
check "the child stops itself" until_true 20 stopped "$(cat up)"
kill -CONT $holder
check "SIGCONT blocked: it continues" until_true 20 gone $holder
gone $holder || kill -9 $holder
wait $holder
same "and ends" 4 $?

# One at a time, many processes.
workers=
for i in 1 2 3 4 5 6; do
    "$SG" run turns -- sh -c 'mkdir busy || echo overlap >>fences; echo $SYNCGUARD_FENCE >>fences
        sleep 0.05; rmdir busy' &
    workers="$workers $!"
done
for i in $workers; do
    wait "$i"
    same "a worker" 0 $?
done
same "all had their turn" 6 "$(wc -l <fences)"
check "fences rise" env LC_ALL=C sort -c -u fences
check "no overlap" lacks "$(cat fences)" overlap

# Output to a closed pipe or a full disk does not affect the child.
"$SG" run -v k -- true 2>/dev/full
same "stderr full" 0 $?
finish
