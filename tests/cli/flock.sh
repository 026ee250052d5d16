#!/bin/bash
# Command lines that users of flock(1) know, with the same effect.
# shellcheck disable=SC2016 # the child expands it
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

exits "-c after the key" 0 run k -c 'echo a | tr a b; echo "$SYNCGUARD_KEY"'
same "a shell runs it" $'b\nk' "$out"
exits "--command after the key" 4 run k --command 'exit 4'
exits "-c before the key" 5 run -c 'exit 5' k
exits "-x -e -o -F" 6 run -x -e -o -F --exclusive --close --no-fork k -c 'exit 6'
exits "a command that is called -c" 127 run k -- -c true

"$SG" run held -- sleep 60 &
holder=$!
until_true 20 held held
exits "--nb" 1 run --nb held -- true
exits "--timeout" 75 run --timeout 0.1 held -- true
exits "-w of flock is in seconds" 75 run -w 0.1 held -c true
kill $holder
wait $holder

# run ends as its child does: by the same signal, but without a core dump of its own.
ends_by() {
    python3 - "$SG" "$@" <<'P'
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)[1:] * 2)
print(subprocess.run(sys.argv[1:], check=False).returncode)
P
}
for number in 1 2 3 6 9 11 15; do
    same "signal $number" -$number "$(ends_by run k -c "ulimit -c 0; kill -$number \$\$")"
done
check "no core dump" [ -z "$(find . -name 'core*')" ]
same "a code is a code" 130 "$(ends_by run k -c 'exit 130')"

# The difference: processes that the program leaves behind do not keep the lock.
exits "a background child" 0 run k -c 'sleep 60 >/dev/null 2>&1 & echo $! >left'
check "it is still there" kill -0 "$(cat left)"
check "the lock is free" free k
kill "$(cat left)"
exits "a shell that waits keeps it" 0 run k -- sh -c '(sleep 0.2; "$0" status k >during) & wait' "$SG"
check "held while the background job ran" grep -q 'state: held' during

# The lock id alone, and on standard input, where ps does not show it.
exits "acquire -q" 0 acquire -q k
check "only the id" grep -Eqx '[A-Za-z0-9_-]{22}' out
printf '%s\n' "$out" >id
"$SG" extend --json --ttl 60s - <id >out 2>err
same "extend -" 0 $?
out=$(cat out)
same "its id" "$(cat id)" "$(json lockId)"
"$SG" release - <id 2>err
same "release -" 0 $?
check "free" free k
"$SG" acquire k >grant
"$SG" release - <grant
same "the whole output of acquire will do" 0 $?
check "free" free k
exits "nothing on standard input" 64 release -
echo 'no such id' >id
"$SG" extend - <id 2>err
same "no id" 64 $?
check "is not repeated" lacks "$(cat err)" "no such id"
finish
