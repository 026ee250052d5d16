#!/bin/sh
# Shows what the lock is for: a counter that is wrong without it and right with it, waiters that show
# the holder, a killed command whose program is killed too, and the next fence. The script checks what
# it shows, so it is also a test.
#
#     demo.sh [BUILD [STORE]]      STORE: sqlite, or redis (a server of its own on a socket)
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-build}
store=${2:-sqlite}
syncguard=$(cd "$build" && pwd)/syncguard
folder=$(mktemp -d)
server=
pids=

wrong() {
    echo "demo: $*" >&2
    exit 1
}
end() {
    # shellcheck disable=SC2086 # one word per process
    [ -z "$pids" ] || { kill $pids && wait $pids; } 2>/dev/null || true
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' HUP INT PIPE TERM
cd "$folder"

# The demo has its own folder and server: your real locks are not touched.
case $store in
sqlite) SYNCGUARD_URL=sqlite:$folder/locks.db ;;
redis)
    command -v redis-server >/dev/null || wrong "there is no redis-server"
    redis-server --port 0 --unixsocket "$folder/redis.sock" --unixsocketperm 700 --save '' \
        --dir "$folder" --logfile "$folder/redis.log" &
    server=$!
    until [ -S redis.sock ]; do
        kill -0 $server 2>/dev/null || wrong "redis-server does not start: $(cat redis.log)"
        sleep 0.05
    done
    SYNCGUARD_URL=redis+unix://$folder/redis.sock
    ;;
*) wrong "STORE=$store: the demo knows sqlite and redis" ;;
esac
export SYNCGUARD_URL

bold='' plain=''
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
now_ms() { date +%s%3N; }
# await WHAT COMMAND...: waits until the command succeeds; the limit is generous for slow machines
await() {
    what=$1
    shift
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 6000 ] || wrong "waited too long for $what"
        sleep 0.01
    done
}
number() { echo "${1:-0}" | sed 's/^0*\(.\)/\1/'; }

# No process has the terminal as its standard input, so Ctrl-C reaches this script.
printf 'The store: %s\n' "$SYNCGUARD_URL"

say "1. Four workers add 1 to the number in a file, ten times each. It should end at 40."
cat >add.sh <<'ADD'
number=$(cat counter)
sleep 0.01                      # the work
echo $((number + 1)) >counter
ADD
# count COMMAND...: four workers at once, each runs the command ten times
count() {
    echo 0 >counter
    pids=
    for worker in 1 2 3 4; do
        (
            trap 'kill $turn 2>/dev/null; exit 1' TERM
            for _ in 1 2 3 4 5 6 7 8 9 10; do
                "$@" </dev/null &
                turn=$!
                wait $turn || echo "worker $worker" >failed
            done
        ) &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid"; done
    pids=
    [ ! -e failed ] || wrong "failed: $(cat failed)"
}
count sh add.sh
without=$(cat counter)
[ "$without" -lt 40 ] || wrong "the counter was not corrupted without the lock"
row() { printf '   %-36s %-4s %s\n' "$@"; }
row "sh add.sh" "$without" "$((40 - without)) additions are lost"
count "$syncguard" run counter -- sh add.sh
with=$(cat counter)
[ "$with" = 40 ] || wrong "the counter is $with with the lock"
row "syncguard run counter -- sh add.sh" "$with" "none is lost"

say "2. Ann deploys. Bob, Eve and Joe want to deploy, too."
cat >deploy.sh <<'DEPLOY'
printf '   %s  deploys, fence %s\n' "$1" "$SYNCGUARD_FENCE"
echo "$SYNCGUARD_FENCE" >>fences
while [ -e "$1.holds" ]; do sleep 0.05; done
printf '   %s  is done\n' "$1"
DEPLOY
# person NAME: deploys under the lock, and writes what the command reports to a file
person() {
    "$syncguard" run -v --owner "$1@demo" deploy -- sh deploy.sh "$1" </dev/null 2>"$1.log" &
    pids="$pids $!"
}
: >fences
touch ann.holds
person ann
await "the first holder" [ -s fences ]
for name in bob eve joe; do person $name; done
for name in bob eve joe; do
    await "$name" grep -q "held by ann@demo" $name.log
    sed -n "s/^syncguard: waiting for/   $name  waits for/p" $name.log | head -n 1
done
echo "   ... and anybody can look:"
"$syncguard" list | tee list | sed 's/^/        /'
grep -q ann@demo list || wrong "the list does not show the holder"
sleep 1
rm ann.holds
for pid in $pids; do wait "$pid" || wrong "somebody could not deploy: $(cat ./*.log)"; done
pids=
[ "$(wc -l <fences)" = 4 ] || wrong "not everybody had a turn"
LC_ALL=C sort -c -u fences || wrong "the fences do not rise"
echo "   One at a time, and every fence is higher than the one before."

say "3. kill -9 of the command, while its program works. The lease is 3 seconds."
# shellcheck disable=SC2016
"$syncguard" run --ttl 3s deploy -- \
    sh -c 'echo "$$ $SYNCGUARD_FENCE" >new && mv new started && exec sleep 600' </dev/null &
pids=$!
await "the program" [ -e started ]
read -r program fence <started
started=$(now_ms)
kill -9 $pids
printf '   %-22s its program has the fence %s\n' "kill -9 $pids" "$(number "$fence")"
# A process that ended, but that init has not yet collected, has no program any more.
gone() { [ ! -e "/proc/$program/exe" ]; }
await "the end of the program" gone
{ wait $pids || true; } 2>/dev/null
pids=
echo "   the program is gone    after $(($(now_ms) - started)) ms"
if "$syncguard" status deploy >/dev/null; then
    echo "   the key is still held  nobody released it; it ends with its lease and 1 s more"
elif [ $(($(now_ms) - started)) -lt 2000 ]; then
    wrong "the key was free before its lease ended"
fi
# shellcheck disable=SC2016
"$syncguard" run -w 60s deploy -- sh -c 'echo "$SYNCGUARD_FENCE" >next' </dev/null
next=$(cat next)
[ "$(number "$next")" -gt "$(number "$fence")" ] || wrong "fence $next after $fence"
echo "   the next holder        after $(($(now_ms) - started)) ms, with the fence $(number "$next")"
echo "   A resource that has seen $(number "$next") refuses $(number "$fence"): docs/guides/fencing.md"

say "Next: $top/README.md, or"
echo "   $build/syncguard run hello -- sh -c 'echo \$SYNCGUARD_FENCE'"
