#!/bin/bash
# Slots (--slots): up to N runs of one name at a time.
# shellcheck source=tests/cli/lib.sh
# shellcheck disable=SC2016 # the child expands them
source "$(dirname "$0")/lib.sh" "$@"

# The variables of the program.
exits "variables" 0 run --slots 1 render -- sh -c 'echo "$SYNCGUARD_SLOT $SYNCGUARD_KEY $SYNCGUARD_FENCE"'
same "name the slot" "1 render:slot:1 000000000000001" "$out"
exits "a plain lock" 0 run render -- sh -c 'echo "$SYNCGUARD_KEY ${SYNCGUARD_SLOT-none}"'
same "has no slot" "render none" "$out"
exits "the slot of an outer run" 0 run --slots 2 render -- "$SG" run other -- sh -c 'echo "${SYNCGUARD_SLOT-none}"'
same "is not passed on" "none" "$out"
exits "-v" 0 run -v --slots 1 render -- true
check "names the slot" contains "$err" "acquired slot 1 after"

# Two run, the third waits for whichever ends first.
hold() {
    "$SG" run --slots 2 render -- sh -c "echo \$SYNCGUARD_SLOT >up.$1; until [ -e stop.$1 ]; do sleep 0.05; done" &
    until_true 20 test -s "up.$1"
}
hold 1
first=$!
hold 2
second=$!
same "two slots" "1 2" "$(sort -n up.1 up.2 | xargs)"
run_sg list 'render:slot:*'
same "list shows both" 2 "$(grep -c 'render:slot:[12] ' out)"
exits "-n" 1 run -n -v --slots 2 render -- true
check "says why" contains "$err" "'render': all 2 slots are held"
exits "-E" 7 run -n -E 7 --slots 2 render -- true
exits "-w" 75 run -w 500ms --slots 2 render -- true
check "says why" grep -q "gave up on 'render' after .*: all 2 slots are held" err
exits "one more slot" 0 run -n --slots 3 render -- sh -c 'echo "$SYNCGUARD_SLOT"'
same "is the third" 3 "$out"
"$SG" run -v --slots 2 render -- sh -c 'echo "$SYNCGUARD_SLOT" >third' 2>waited &
third=$!
sleep 0.5
check "the third waits" [ ! -e third ]
check "and says for what" grep -q "waiting for 'render'.*all 2 slots are held" waited
touch stop.2
wait $second
wait $third
same "the slot that came free" "$(cat up.2)" "$(cat third)"
touch stop.1
wait $first

# A lost slot ends its program, and the message names the next holder of that slot.
rm -f up
"$SG" run --ttl 3s --slots 1 render -- sh -c 'echo up >up; exec sleep 60' 2>lost &
runner=$!
until_true 20 test -s up
"$SG" release --key render:slot:1 --force 2>/dev/null
wait $runner
same "a lost slot" 76 $?
check "is reported" grep -q "the lock 'render' is lost" lost

# acquire.
exits "acquire" 0 acquire --slots 2 render
check "prints the slot" grep -q '^slot: [12]$' out
exits "acquire --json" 0 acquire --json --slots 2 render
check "prints slot and key" grep -qE '"key":"render:slot:([12])".*"slot":[12]}' out
exits "all are held" 1 acquire -n --slots 2 render
for slot in 1 2; do "$SG" release --key "render:slot:$slot" --force 2>/dev/null; done

# A minimum hold keeps the slot.
exits "--min-hold" 0 run --slots 1 --min-hold 1h kept -- true
exits "the slot is kept" 1 run -n --slots 1 kept -- true
exits "another one is free" 0 run -n --slots 2 kept -- true

# A run inside a run of the same name can wait for ever: it is refused.
exits "nested" 64 run --slots 2 render -- "$SG" run --slots 2 render -- true
check "says why" contains "$err" "holds a slot of 'render'"
exits "nested with more slots" 64 run --slots 2 render -- "$SG" run --slots 256 render -- true
exits "nested plain lock of the slot" 64 run --slots 1 render -- "$SG" run render:slot:1 -- true
exits "nested plain lock of the name" 0 run --slots 2 render -- "$SG" run render -- true
exits "nested slots of another name" 0 run --slots 2 render -- "$SG" run --slots 2 other -- true

# Wrong usage.
for odd in 0 257 -1 x 1x '' 99999999999; do
    exits "--slots '$odd'" 64 run --slots "$odd" render -- true
done
exits "256 slots" 0 run --slots 256 render -- true
exits "several keys" 64 run --slots 2 -k a -k b -- true
exits "a long name" 64 run --slots 2 "$(printf 'x%.0s' {1..504})" -- true
check "says the limit" contains "$err" "longer than 503 bytes"
exits "the longest name" 0 run --slots 2 "$(printf 'x%.0s' {1..503})" -- true

finish
