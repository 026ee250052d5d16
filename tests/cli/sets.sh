#!/bin/bash
# Several keys (-k), and a run inside a run of the same key.
# shellcheck source=tests/cli/lib.sh
# shellcheck disable=SC2016 # the child expands them
source "$(dirname "$0")/lib.sh" "$@"

# All keys are held while the program runs, each once, and none afterwards.
exits "two keys" 0 run -k b -k a -k b -- "$SG" list
same "each is held once" 2 "$(grep -c ':' out)"
run_sg list
same "and released" 0 "$(grep -c ':' out)"

# Numbers follow the command line, whatever order the locks were taken in.
exits "variables" 0 run -k b -k a -- sh -c 'echo "$SYNCGUARD_KEYS $SYNCGUARD_KEY_1 $SYNCGUARD_KEY_2 $SYNCGUARD_FENCE_2 ${SYNCGUARD_KEY-none}"'
same "are numbered" "2 b a 000000000000002 none" "$out"
exits "one key" 0 run -k a -- sh -c 'echo "$SYNCGUARD_KEY ${SYNCGUARD_KEYS-none}"'
same "has plain names" "a none" "$out"
exits "numbers of an outer run" 0 run -k a -k b -- "$SG" run c -- \
    sh -c 'echo "$SYNCGUARD_KEY ${SYNCGUARD_KEY_1-none}"'
same "are not passed on" "c none" "$out"
exits "-c" 0 run -k a -k b -c 'echo "$0"'

# All or none: nothing stays locked, and the message names the key that is held.
id=$("$SG" acquire -q --owner somebody b)
exits "one is held" 1 run -n -v -k a -k b -- true
check "names it" contains "$err" "'b' is held by somebody"
exits "a is free" 0 run -n a -- true
exits "waits for all" 75 run -w 500ms -k c -k b -k a -- true
check "names what it waited for" contains "$err" "gave up on 'b'"
exits "-E" 7 run -n -E 7 -k a -k b -- true
"$SG" release "$id"
exits "free again" 0 run -n -k a -k b -- true

# One lost key ends the program.
rm -f up
"$SG" run --ttl 3s -k a -k b -- sh -c 'echo up >up; exec sleep 60' 2>lost &
runner=$!
until_true 20 test -s up
"$SG" release --key b --force 2>/dev/null
wait $runner
same "one lost key" 76 $?
check "is reported" grep -q "the lock 'a', 'b' is lost" lost
exits "the other one is released" 0 run -n -k a -k b -- true

# Wrong usage.
exits "no command" 64 run -k a -k b
keys=()
for i in $(seq 65); do keys+=(-k "key$i"); done
exits "too many keys" 64 run "${keys[@]}" -- true
exits "64 keys" 0 run "${keys[@]:2}" -- true
exits "an empty key" 64 run -k a -k '' -- true

# A run inside a run of the same key would wait for ever: it is refused at once.
exits "nested" 64 run k -- "$SG" run k -- true
check "says why" contains "$err" "locks are not reentrant"
check "names the key" contains "$err" "'k'"
exits "nested with -n" 64 run k -- "$SG" run -n -E 0 k -- true
exits "nested acquire" 64 run k -- "$SG" acquire k
exits "two levels down" 64 run k -- "$SG" run j -- sh -c "'$SG' run k -- true"
exits "one key of several" 64 run -k a -k b -- "$SG" run -k c -k b -- true
exits "the same key in another spelling" 64 run $'caf\xc3\xa9' -- "$SG" run $'cafe\xcc\x81' -- true
exits "another key" 0 run k -- "$SG" run j -- true
exits "another store" 0 run k -- "$SG" run -b "sqlite:$WORK/other.db" k -- true

# The variable is checked against the store: a child that outlives its run is not refused because of a
# lock that is gone, or that another owner has by now.
exits "outer run" 0 run k -- sh -c 'echo "$SYNCGUARD_HELD"'
stale=$out
check "the variable is set" [ -n "$stale" ]
check "without key or lock id" [ "${stale//[0-9a-f:,]/}" = "" ]
SYNCGUARD_HELD=$stale exits "a lock that is gone" 0 run k -- true
id=$("$SG" acquire -q k)
SYNCGUARD_HELD=$stale exits "another holder" 1 run -n k -- true
"$SG" release "$id"
for odd in "," : :: "$(printf '%070000d' 0)" 'x;$(touch bad)'; do
    SYNCGUARD_HELD=$odd exits "odd variable ${odd:0:20}" 0 run k -- true
done
check "is not run" [ ! -e bad ]

finish
