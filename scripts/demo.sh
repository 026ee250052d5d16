#!/bin/sh
# The main job, to watch: several processes want one key, one at a time gets it, fences rise, and
# the lock of a holder that crashed is free again one second after its TTL. It checks what it shows.
#
#     demo.sh [BUILD]
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-build}
syncguard=$(cd "$build" && pwd)/syncguard
folder=$(mktemp -d)
holder=
trap '[ -z "$holder" ] || kill -9 $holder 2>/dev/null || true; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
cd "$folder"

# The embedded store, in a folder of its own: your real locks are not touched.
export SYNCGUARD_URL="sqlite:$folder/locks.db"
journal=$folder/journal
workers=6

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
wrong() {
    echo "demo: $*" >&2
    exit 1
}
now_ms() { date +%s%3N; }

say "1. $workers processes want the key \"report\"; each works for a third of a second."
cat >work.sh <<'WORK'
# Runs under the lock. The folder "busy" can be made only if nobody else is at work.
mkdir busy || { echo "overlap" >>"$1"; exit 1; }
printf '   worker %s begins   fence %s\n' "$2" "$SYNCGUARD_FENCE"
echo "$SYNCGUARD_FENCE" >>"$1"
sleep 0.33
printf '   worker %s ends\n' "$2"
rmdir busy
WORK
started=$(now_ms)
pids=
worker=1
while [ $worker -le $workers ]; do
    "$syncguard" run report -- sh work.sh "$journal" $worker &
    pids="$pids $!"
    worker=$((worker + 1))
done
for pid in $pids; do
    wait "$pid" || wrong "a worker failed with exit code $?"
done
took=$(($(now_ms) - started))
[ "$(wc -l <"$journal")" = $workers ] || wrong "not every worker had its turn"
LC_ALL=C sort -c -u "$journal" || wrong "the fences do not rise"
[ $took -ge $((workers * 330)) ] || wrong "they overlapped: $took ms for all"
echo "   all had their turn, one at a time, in $took ms; every fence above the one before"

say "2. While somebody holds the key, -n gives up at once and -w after a while."
"$syncguard" run report -- sleep 2 &
holder=$!
until "$syncguard" status report >/dev/null; do sleep 0.02; done
code=0
"$syncguard" run -n report -- true || code=$?
[ $code = 1 ] || wrong "-n: exit code $code instead of 1"
echo "   run -n report       exit code 1, at once"
code=0
"$syncguard" run -w 500ms report -- true 2>/dev/null || code=$?
[ $code = 75 ] || wrong "-w: exit code $code instead of 75"
echo "   run -w 500ms report exit code 75, after half a second"
wait $holder || wrong "the holder failed"
holder=

say "3. A holder with a TTL of 2 seconds crashes (kill -9). Its lock ends with TTL + 1 s, not earlier."
# Its child is killed with it; what stays behind is only the lock.
"$syncguard" run --ttl 2s report -- sh -c 'echo $$ >child; exec sleep 60' &
holder=$!
until [ -s child ]; do sleep 0.02; done
granted=$(now_ms)
kill -9 $holder "$(cat child)" 2>/dev/null || true
wait $holder 2>/dev/null || true
holder=
"$syncguard" status report >/dev/null || wrong "the crash freed the key at once"
echo "   crashed; the key is still held"
# shellcheck disable=SC2016 # the child's shell expands it
"$syncguard" run report -- sh -c 'echo "$SYNCGUARD_FENCE" >>"$1"' sh "$journal"
waited=$(($(now_ms) - granted))
[ $waited -ge 2700 ] || wrong "free too early, after $waited ms"
[ $waited -le 6000 ] || wrong "free too late, after $waited ms"
LC_ALL=C sort -c -u "$journal" || wrong "the fences do not rise"
echo "   the next one got it after $waited ms, with fence $(tail -n 1 "$journal")"

say "Done. Next: $top/README.md, or try: build/syncguard run hello -- sh -c 'echo \$SYNCGUARD_FENCE'"
