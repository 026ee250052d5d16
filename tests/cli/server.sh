#!/bin/bash
# run on a server that hangs, dies or does not exist (Redis).
# shellcheck disable=SC2016,SC2317 # the child's shell expands; traps call functions
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# One server of tests/servers: ask VERB... sets its number, port and process id.
coproc SERVERS { exec python3 "$TESTS/servers" --serve; }
keeper=$SERVERS_PID
ask() {
    local ok IFS=$'\t'
    printf '%s\n' "$*" >&"${SERVERS[1]}"
    IFS=' ' read -r ok number port server _ <&"${SERVERS[0]}"
    check "$1: the server is there" [ "$ok" = ok ] || finish
}
stop_server() { ask down "$number" 9; }
start_server() { ask redis_again "$number" "$port"; }
end_all() {
    [ "$BASHPID" = "$$" ] || return
    kill "$keeper"
    wait "$keeper" 2>/dev/null
    at_exit
}
trap end_all EXIT
ask redis
stop_server
export SYNCGUARD_URL=redis://127.0.0.1:$port

# No server at all.
begun=$(now_ms)
exits "no server, -n" 69 run -n k -- true
check "one line" one_line "$err"
check "reported soon" [ $(($(now_ms) - begun)) -lt 15000 ]
exits "no server, status" 69 status k

# A dead store is not a held lock: it is reported with -w too, and -E does not change the exit code.
for command in run acquire; do
    program=
    [ $command = acquire ] || program='-- touch ran'
    for option in '-w 1s' '-w 1s -E 0' '-w 0' '-n -E 0'; do
        # shellcheck disable=SC2086 # words
        exits "no server, $command $option" 69 $command $option k $program
        check "$command $option: one line" one_line "$err"
        check "$command $option: says why" contains "$err" ServiceUnavailable
    done
done
check "nothing ran" [ ! -e ran ]
if [ -e "$(dirname "$SG")/libsyncguard-postgres.so.0" ]; then
    begun=$(now_ms)
    exits "PostgreSQL is down, -w" 69 run -w 2s -E 0 -b "postgres://127.0.0.1:$port/x" k -- touch ran
    took=$(($(now_ms) - begun))
    check "tried for as long as -w, $took ms" [ $took -ge 1900 ]
fi

# It starts while the command waits.
"$SG" run k -- sh -c 'echo $SYNCGUARD_FENCE' >fence 2>early &
waiter=$!
check "said what it waits for" until_true 20 grep -q 'still trying' early
start_server
wait $waiter
same "waited for the missing server" 0 $?
same "first fence" 000000000000001 "$(cat fence)"

exits "again" 0 run k -- sh -c 'echo $SYNCGUARD_FENCE'
same "second fence" 000000000000002 "$out"
exits "doctor without persistence warns" 1 doctor
redis-cli -p "$port" config set maxmemory-policy allkeys-lru >/dev/null
redis-cli -p "$port" config set maxmemory 100mb >/dev/null
exits "doctor finds that locks may be evicted" 2 doctor
redis-cli -p "$port" config set maxmemory-policy noeviction >/dev/null
redis-cli -p "$port" config set maxmemory 0 >/dev/null

# A server whose connections are all taken is not down: a limit is reached.
limit_connections() {
    local reply
    printf 'CONFIG SET maxclients %s\r\n' "$1" >&"$taken"
    read -r -t 60 reply <&"$taken"
    same "at most $1 connections" +OK "${reply%$'\r'}"
}
exec {taken}<>"/dev/tcp/127.0.0.1/$port"
limit_connections 1
for command in 'status k' 'acquire -n k' 'run -n k -- touch ran'; do
    # shellcheck disable=SC2086 # words
    exits "no connection left, $command" 69 $command
    check "$command: one line" one_line "$err"
    check "$command: says why" contains "$err" '(RateLimited ERR: a limit of the store'
done
exits "no connection left, -w" 69 run -w 1s -E 0 k -- touch ran
check "nothing ran" [ ! -e ran ]
limit_connections 10000
exec {taken}>&-
exits "there is one again" 0 run -n k -- true

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

# Wrong credentials.
start_server
redis-cli -p "$port" config set requirepass pw-marker-2 >/dev/null
for url in "$SYNCGUARD_URL" "redis://:pw-marker-3@127.0.0.1:$port"; do
    exits "refused" 77 run -v -n -b "$url" k -- true
    check "no password shown" lacks "$err" pw-marker
done
exits "let in" 0 run -v -n -b "redis://:pw-marker-2@127.0.0.1:$port" k -- true
check "no password shown" lacks "$err" pw-marker
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

# It does not answer: attempts are repeated for as long as -w says.
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
