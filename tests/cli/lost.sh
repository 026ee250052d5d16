#!/bin/bash
# A lock that is lost while its program runs: the program is ended, or only warned. Times are
# generous.
# shellcheck disable=SC2016
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

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
exits "max-hold" 76 run --ttl 60s --max-hold 1s k -- sleep 90
check "max-hold ends it" [ $(($(now_ms) - begun)) -lt 15000 ]
check "says why" contains "$err" max-hold
# Without a grace period the lease may be found over within its last millisecond.
for _ in 1 2 3; do
    exits "max-hold, no grace" 76 run --max-hold 1s --grace 0 k -- sleep 60
    check "max-hold, no grace: says why" contains "$err" max-hold
done
# The warning comes a third of it earlier, not as early as the lease would allow.
exits "max-hold, a third" 76 run --max-hold 6s k -- sh -c 'sleep 1; echo yes >alive; sleep 90'
check "not ended at once" [ -s alive ]
rm -f alive
exits "max-hold, a long grace" 76 run --max-hold 6s --grace 6s k -- sh -c 'sleep 1; echo yes >alive; sleep 90'
check "a long grace: not ended at once" [ -s alive ]
finish
