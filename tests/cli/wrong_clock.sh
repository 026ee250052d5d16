#!/bin/bash
# Ages count by the store's clock: a command whose own clock is two hours off shows the right ages.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
export SYNCGUARD_URL=$2
key=wrong-clock-$$
skewed=$(dirname "$0")/../servers/skewed.sh
shift_by=+2h
held='([1-9][0-9]*(\.[0-9])?s|[1-9][0-9]*m[0-5][0-9]s)'
left='([1-9]m[0-5][0-9]s|10m00s)'

# The command with the wrong clock: sets code, out, err.
skewed() {
    code=0
    "$skewed" "$shift_by" "$SG" "$@" >"$WORK/out" 2>"$WORK/err" || code=$?
    out=$(cat "$WORK/out")
    err=$(cat "$WORK/err")
}

# shows TEXT PATTERN: a line of the output or of the messages.
shows() {
    check "$shift_by: $1, got: $out $err" grep -qE "$2" <(printf '%s\n' "$out" "$err")
}

exits "acquire" 0 acquire --ttl 10m --owner holder "$key"
id=$("$SG" status --json --raw "$key" | sed -n 's/.*"lockId":"\([^"]*\)".*/\1/p')
sleep 1.2
for shift_by in +2h -2h; do
    check "the clock is off" [ $(($("$skewed" "$shift_by" date +%s) / 3600)) \
        -ne $(($(date +%s) / 3600)) ]
    skewed status "$key"
    shows "status, since" "^held for: $held \\("
    shows "status, until" "^expires in: $left \\("
    skewed status --id "$id"
    shows "status by id, since" "^held for: $held \\("
    skewed list "$key"
    shows "list" "^$key +holder +$held +$left +"
    skewed list --json "$key"
    check "nowMs, $out" [ $(($(json nowMs) - $(json acquiredAtMs))) -ge 1000 ]
    check "nowMs, $out" [ $(($(json nowMs) - $(json acquiredAtMs))) -lt 300000 ]
    skewed run -n "$key" -- true
    shows "run -n" "held by holder, expires in $left\$"
    skewed run -v -w 1s "$key" -- true
    shows "run -w" "held by holder for $held, lease ends in $left\$"
done
skewed release --key "$key" --force
shows "release --force" "holder had held it for $held\$"
finish
