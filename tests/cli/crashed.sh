#!/bin/bash
# Never two children: holders that crash, renew or are stopped. Times are generous;
# only "not earlier" is exact.
# shellcheck disable=SC2016
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# kill -9 of the holder: the key is free after TTL + 1 s, not earlier; the process group is killed.
start_family --ttl 2s k
kill -9 $runner
killed=$(now_ms)
wait $runner 2>/dev/null
check "still held after the crash" held k
check "its child is ended" until_true 10 gone "$child"
check "its grandchild too" until_true 10 gone "$grandchild"
exits "the next one waits for the lease" 0 run k -- true
# The last renewal was at most a third of the TTL ago: at least 4/3 s and the tolerance remain.
took=$(($(now_ms) - killed))
check "not earlier, $took ms" [ $took -ge 2200 ]
check "not much later, $took ms" [ $took -le 15000 ]
"$SG" acquire --ttl 1s exact >grant
expires=$(sed -n 's/^expiresAtMs: //p' grant)
exits "after an acquire" 0 run exact -- date +%s%3N
check "TTL + 1 s, not earlier" [ "$out" -ge $((expires + 950)) ]

# Renewing keeps a lock well past its TTL.
exits "renewed" 0 run --ttl 2s k -- sleep 6

# A holder that is stopped past its lease, then continued: the child must not continue.
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

# A holder that is stopped only for a moment continues.
"$SG" run --ttl 6s k -- sh -c 'echo up >up2; sleep 2; exit 6' &
runner=$!
until_true 20 test -s up2
kill -STOP $runner
sleep 1
kill -CONT $runner
wait $runner
same "stopped for a moment" 6 $?
finish
