#!/bin/bash
# Never two children: crashed holders, lost locks, stopped holders. Times are generous; only
# "not earlier" is exact.
# shellcheck disable=SC2016
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# family COMMAND...: a child that leaves a grandchild in its group; both write their pids.
family='sh -c "echo \$\$ >grandchild; exec sleep 60" & echo $$ >child; wait; sleep 60'
start_family() {
    rm -f child grandchild
    "$SG" run "$@" -- sh -c "$family" 2>lost_err &
    runner=$!
    until_true 20 test -s child
    until_true 20 test -s grandchild
    child=$(cat child)
    grandchild=$(cat grandchild)
}
lock_id_of() { "$SG" status --raw --json "$1" | sed -n 's/.*"lockId":"\([^"]*\)".*/\1/p'; }

early=
# kill -9 of the holder: free after TTL + 1 s, not earlier; its process group is killed.
start_family --ttl 2s k
kill -9 $runner
killed=$(now_ms)
wait $runner 2>/dev/null
check "still held after the crash" held k
check "its child is ended" until_true 10 gone "$child"
check "its grandchild too" until_true 10 gone "$grandchild"
exits "the next one waits for the lease" 0 run k -- true
# Renewed at most a third of the TTL before: at least 4/3 s and the tolerance remain.
took=$(($(now_ms) - killed))
check "not earlier, $took ms" [ $took -ge 2200 ]
check "not much later, $took ms" [ $took -le 15000 ]

# Killed or stopped as soon as its program runs, which ignores SIGTERM: it is killed all the same.
for signal in KILL STOP; do
    for i in 1 2 3 4 5 6 7 8 9 10; do
        "$SG" run --ttl 900ms "early-$signal-$i" -- sh -c "trap '' TERM; kill -$signal \$PPID
            echo \$\$ >early-$signal-$i; exec sleep 60" 2>/dev/null &
        early="$early $!"
    done
    for i in 1 2 3 4 5 6 7 8 9 10; do
        until_true 20 test -s "early-$signal-$i"
        check "$signal at the start ends the program" until_true 10 gone "$(cat "early-$signal-$i")"
    done
done
# shellcheck disable=SC2086 # a list
kill -9 $early 2>/dev/null
wait

"$SG" acquire --ttl 1s exact >grant
expires=$(sed -n 's/^expiresAtMs: //p' grant)
exits "after an acquire" 0 run exact -- date +%s%3N
check "TTL + 1 s, not earlier" [ "$out" -ge $((expires + 950)) ]

# Another process releases the lock: the whole group is killed, exit 76.
start_family --ttl 3s k
"$SG" release "$(lock_id_of k)"
same "forced release" 0 $?
wait $runner
same "lost: exit code" 76 $?
check "says so" grep -q "lock 'k' is lost" lost_err
check "child ended" gone "$child"
check "grandchild ended" until_true 10 gone "$grandchild"

# The loss is found only at the end: still exit 76.
exits "released from inside" 76 run --ttl 30s k -- sh -c "'$SG' release \$SYNCGUARD_LOCK_ID"
exits "released from inside, only warned" 76 run --on-lost=warn k -- \
    sh -c "'$SG' release \$SYNCGUARD_LOCK_ID"

# A child that ignores SIGTERM is killed.
rm -f up
"$SG" run --ttl 3s k -- sh -c 'trap "" TERM; echo up >up; while :; do sleep 0.1; done' 2>/dev/null &
runner=$!
until_true 20 test -s up
"$SG" release "$(lock_id_of k)"
begun=$(now_ms)
wait $runner
same "a child that ignores SIGTERM" 76 $?
check "within the grace" [ $(($(now_ms) - begun)) -lt 15000 ]

# --grace gives the child time to clean up.
rm -f up
"$SG" run --ttl 6s --grace 2s k -- \
    sh -c 'trap "sleep 1; echo clean >up; exit 0" TERM; echo up >up; while :; do sleep 0.1; done' 2>/dev/null &
runner=$!
until_true 20 test -s up
"$SG" release "$(lock_id_of k)"
wait $runner
same "cleaned up, still lost" 76 $?
same "the child had time" clean "$(cat up)"

# --on-lost=warn: the child continues; its exit code is in a message, that of the command is 76.
rm -f up
"$SG" run --on-lost=warn --ttl 3s k -- sh -c 'echo up >up; sleep 4; exit 4' 2>warned &
runner=$!
until_true 20 test -s up
"$SG" release "$(lock_id_of k)"
wait $runner
same "warn: lost" 76 $?
check "warn: a message contains the child's code" grep -q 'exit code 4' warned
same "warn: said once" 1 "$(grep -c "lock 'k' is lost" warned)"

# --max-hold ends the renewals, then the child.
begun=$(now_ms)
exits "max-hold" 76 run --ttl 1500ms --max-hold 1s k -- sleep 60
check "max-hold ends it" [ $(($(now_ms) - begun)) -lt 15000 ]
check "says why" contains "$err" max-hold

# Renewing keeps a lock well past its TTL.
exits "renewed" 0 run --ttl 2s k -- sleep 6

# Stopped past its lease, then continued: the child must not continue.
start_family --ttl 2s k
kill -STOP $runner
# No process of the group runs while the next holder runs (a zombie counts as gone).
exits "the next holder" 0 run -w 30s k -- sh -c "ps -o stat= -p $child,$grandchild; true"
same "none runs at the same time" 0 "$(grep -vc '^Z' out)"
kill -CONT $runner
wait $runner
same "stopped for too long" 76 $?
check "child ended" gone "$child"
check "grandchild ended" until_true 10 gone "$grandchild"

# Stopped for a moment only: it continues.
"$SG" run --ttl 6s k -- sh -c 'echo up >up2; sleep 2; exit 6' &
runner=$!
until_true 20 test -s up2
kill -STOP $runner
sleep 1
kill -CONT $runner
wait $runner
same "stopped for a moment" 6 $?
finish
