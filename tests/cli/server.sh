#!/bin/bash
# run on a server that does not exist, has no connection left or refuses the client (Redis).
# shellcheck disable=SC2016 # the child's shell expands
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
# shellcheck source=tests/cli/redis.sh
source "$TESTS/cli/redis.sh"
stop_server

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

# The server starts while the command waits.
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

# A server without a free connection is not down: a limit is reached.
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

# Wrong credentials.
redis-cli -p "$port" config set requirepass pw-marker-2 >/dev/null
for url in "$SYNCGUARD_URL" "redis://:pw-marker-3@127.0.0.1:$port"; do
    exits "refused" 77 run -v -n -b "$url" k -- true
    check "no password shown" lacks "$err" pw-marker
done
exits "let in" 0 run -v -n -b "redis://:pw-marker-2@127.0.0.1:$port" k -- true
check "no password shown" lacks "$err" pw-marker
finish
