#!/bin/bash
# run on a server that hangs or dies (Redis).
# shellcheck disable=SC2016 # the child's shell expands
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
# shellcheck source=tests/cli/redis.sh
source "$TESTS/cli/redis.sh"

# A process group under the lock while the server hangs, then dies: killed before the lease ends.
for how in STOP KILL; do
    rm -f child grandchild ended
    "$SG" run --ttl 3s k -- sh -c 'sh -c "echo \$\$ >grandchild; exec sleep 60" &
        trap "date +%s%3N >ended; exit 0" TERM; echo $$ >child; while :; do sleep 0.1; done' 2>lost_err &
    runner=$!
    until_true 20 test -s child
    until_true 20 test -s grandchild
    kill -$how "$server"
    cut=$(now_ms)
    wait $runner
    same "SIG$how of the server: exit code" 76 $?
    check "says so" grep -q 'renewals are not confirmed' lost_err
    check "the child was asked first" [ -s ended ]
    # The lease ends at most 3 s after the cut; leave room for a busy machine.
    check "in time" [ $(($(now_ms) - cut)) -lt 20000 ]
    # One second for the renewal on its way and one for the release, instead of the 5 s of a request.
    late=$(($(now_ms) - $(cat ended)))
    check "the release is not waited for, $late ms" [ $late -lt 5500 ]
    check "child ended" gone "$(cat child)"
    check "grandchild ended" until_true 10 gone "$(cat grandchild)"
    kill -CONT "$server" 2>/dev/null
done
stop_server

# A server that hangs during a request.
start_server
kill -STOP "$server"
begun=$(now_ms)
exits "hanging server" 69 run -n -b "$SYNCGUARD_URL?timeout_ms=500" k -- true
check "the deadline holds" [ $(($(now_ms) - begun)) -lt 10000 ]
"$SG" run -b "$SYNCGUARD_URL?timeout_ms=30000" k -- touch ran &
waiter=$!
sleep 0.5
begun=$(now_ms)
kill -TERM $waiter
wait $waiter
same "a signal ends it" 143 $?
check "soon" [ $(($(now_ms) - begun)) -lt 4000 ]
check "nothing ran" [ ! -e ran ]

# The server does not answer: attempts are repeated for the time of -w.
begun=$(now_ms)
exits "hanging server, -w" 69 run -w 2s -E 0 -b "$SYNCGUARD_URL?timeout_ms=300" k -- touch ran
check "says why" contains "$err" NetworkTimeout
took=$(($(now_ms) - begun))
check "about as long as -w, $took ms" [ $took -ge 1900 ]
check "not much longer, $took ms" [ $took -lt 10000 ]
exits "hanging server, -w shorter than an attempt" 69 run -w 500ms -E 0 k -- touch ran
check "says why" contains "$err" NetworkTimeout
for signal in INT TERM; do
    # A background job of a shell without job control ignores SIGINT: restore the default.
    python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$SG" run -v -b "$SYNCGUARD_URL?timeout_ms=300" k -- touch ran 2>hung_err &
    waiter=$!
    check "says what it waits for" until_true 20 grep -q 'still trying' hung_err
    kill -0 $waiter
    same "and waits on" 0 $?
    begun=$(now_ms)
    kill -$signal $waiter
    wait $waiter
    code=$?
    same "SIG$signal ends it" $((128 + $(kill -l $signal))) $code
    check "soon" [ $(($(now_ms) - begun)) -lt 4000 ]
done
check "nothing ran" [ ! -e ran ]
"$SG" run -b "$SYNCGUARD_URL?timeout_ms=300" k -- touch ran 2>/dev/null &
waiter=$!
"$SG" acquire -b "$SYNCGUARD_URL?timeout_ms=300" other >grant 2>/dev/null &
second=$!
sleep 2
kill -CONT "$server"
wait $waiter
same "waited out the hang" 0 $?
check "and ran" [ -e ran ]
wait $second
same "acquire too" 0 $?
check "and has it" grep -q lockId grant
finish
