# Shared by the tests of the command: a home of their own, and small checks that go on after a
# failure and are counted at the end.
#
#     source lib.sh "$@"        first argument: the command to test
#
# shellcheck shell=bash disable=SC2034,SC2317
set -u
SG=$1
TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ -x "$SG" ] || {
    echo "no command at $SG" >&2
    exit 1
}
SG=$(cd "$(dirname "$SG")" && pwd)/$(basename "$SG")
WORK=$(mktemp -d)
export HOME=$WORK/home XDG_STATE_HOME=$WORK/state XDG_CONFIG_HOME=$WORK/config USER=tester
mkdir "$HOME" "$XDG_STATE_HOME"
unset SYNCGUARD_URL SYNCGUARD_ENV SYNCGUARD_DEBUG SYNCGUARD_KEY SYNCGUARD_FENCE SYNCGUARD_LOCK_ID SYNCGUARD_HELD
# The tests must not depend on the user that runs them: root has another default file.
export SYNCGUARD_URL="sqlite:$WORK/locks.db"
cd "$WORK" || exit 1
exec </dev/null

faults=0
checks=0

at_exit() {
    local pid
    # A background job that is killed before it has executed its program may still have our trap.
    [ "$BASHPID" = "$$" ] || return
    for pid in $(jobs -p); do
        kill -9 "$pid" 2>/dev/null
    done
    rm -rf "$WORK"
}
trap at_exit EXIT

finish() {
    echo "$checks checks, $faults failed"
    [ $faults -eq 0 ] && [ $checks -gt 0 ]
    exit
}

# check TEXT CONDITION...: the condition is a command.
check() {
    local text=$1
    shift
    checks=$((checks + 1))
    "$@" && return 0
    faults=$((faults + 1))
    echo "FAILED: $text ($*)"
    [ ! -s "$WORK/err" ] || sed 's/^/    stderr: /' "$WORK/err"
    return 1
}

# same TEXT WANTED GOT
same() {
    check "$1: wanted '$2', got '$3'" [ "$2" = "$3" ]
}

# run_sg ARGUMENTS...: sets code, out, err.
run_sg() {
    code=0
    "$SG" "$@" >"$WORK/out" 2>"$WORK/err" || code=$?
    out=$(cat "$WORK/out")
    err=$(cat "$WORK/err")
}

# exits TEXT CODE ARGUMENTS...
exits() {
    local text=$1 wanted=$2
    shift 2
    run_sg "$@"
    same "$text: exit code" "$wanted" "$code"
}

now_ms() { date +%s%3N; }

# until_true SECONDS COMMAND...: waits until the command succeeds.
until_true() {
    local end=$(($(now_ms) + $1 * 1000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(now_ms)" -lt "$end" ] || return 1
        sleep 0.05
    done
}

held() { "$SG" status "$1" >/dev/null; }
free() { ! held "$1"; }
gone() { ! kill -0 "$1" 2>/dev/null || [ "$(ps -o stat= -p "$1" | cut -c1)" = Z ]; }
has_lines() { [ "$(wc -l <"$1")" -ge "$2" ]; }
one_line() { [ "$(printf '%s\n' "$1" | wc -l)" = 1 ] && [ -n "$1" ]; }
contains() { case $1 in *"$2"*) true ;; *) false ;; esac }
lacks() { ! contains "$1" "$2"; }

# start_family OPTIONS...: run with these options and the key, and a child that leaves a grandchild in its group. Sets
# runner, child and grandchild; the command writes its messages to lost_err.
start_family() {
    rm -f child grandchild
    # shellcheck disable=SC2016 # the child's shell expands
    "$SG" run "$@" -- sh -c 'sh -c "echo \$\$ >grandchild; exec sleep 60" & echo $$ >child; wait; sleep 60' 2>lost_err &
    runner=$!
    until_true 20 test -s child
    until_true 20 test -s grandchild
    child=$(cat child)
    grandchild=$(cat grandchild)
}
lock_id_of() { "$SG" status --raw --json "$1" | sed -n 's/.*"lockId":"\([^"]*\)".*/\1/p'; }

# json NAME: that field of the one object in $out, strict about the syntax.
json() {
    printf '%s\n' "$out" | python3 -c '
import json, sys
value = json.loads(sys.stdin.read())[sys.argv[1]]
print(value if isinstance(value, str) else json.dumps(value))' "$1"
}
