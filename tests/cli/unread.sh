#!/bin/bash
# A stderr without a reader stops neither the supervision of a program nor the command.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# Both ends of this pipe stay open, and it is full.
mkfifo full
exec 9<>full
for size in 4096 1; do
    dd if=/dev/zero of=full oflag=nonblock bs=$size 2>/dev/null
done

# The loss is found after a third of the lease, and long before its end, when the watchdog would kill the program.
"$SG" run --ttl 30s plain -- sh -c 'exec 2>&-; echo $$ >plain; while :; do sleep 0.1; done' 2>&9 &
plain=$!
"$SG" run --ttl 30s stubborn -- sh -c 'exec 2>&-; trap "" TERM; echo $$ >stubborn; while :; do sleep 0.1; done' 2>&9 &
stubborn=$!
for key in plain stubborn; do
    check "$key runs" until_true 20 test -s $key
    "$SG" release --key $key --force 2>/dev/null
    same "forced release" 0 $?
done
check "the program is ended" until_true 17 gone "$(cat plain)"
check "a program that ignores SIGTERM is killed" until_true 5 gone "$(cat stubborn)"
for runner in $plain $stubborn; do
    check "the command ends" until_true 20 gone "$runner"
    gone "$runner" || kill -9 "$runner"
    wait "$runner"
    same "the lock was lost" 76 $?
done

# The library's threads log much here.
timeout -s KILL 30 "$SG" run -v --ttl 1500ms --max-hold 1s k -- sleep 60 2>&9
same "max-hold" 76 $?

# Without its audit line a forced release does not happen.
exits "acquire" 0 acquire taken
timeout -s KILL 60 "$SG" release --key taken --force 2>&9
same "the audit line has no reader" 70 $?
"$SG" release --key taken --force 2>/dev/full
same "a full disk" 70 $?
"$SG" release --key taken --force 2>&-
same "no stderr" 70 $?
mkfifo closed
# shellcheck disable=SC2094 # a FIFO: its reader goes, its writer stays
exec 8<>closed 7>closed 8>&-
"$SG" release --key taken --force 2>&7
same "a closed pipe" 70 $?
exec 7>&-
check "still held" held taken
# A slow reader gets both lines.
mkfifo slow
exec 8<>slow
dd if=/dev/zero of=slow oflag=nonblock bs=4096 2>/dev/null
"$SG" release --key taken --force 2>&8 &
release=$!
sleep 1
timeout 20 grep -am1 'result=released' slow >lines &
wait $release
same "a slow reader" 0 $?
wait $!
check "the result" grep -qa 'key="taken".*result=released' lines
check "released" free taken
exec 8>&-

# A reader that comes back gets the next message.
dd if=full of=/dev/null bs=65536 count=1 2>/dev/null
timeout -s KILL 30 "$SG" run k -- ./nothing-there 2>&9
same "not found" 127 $?
check "a message after that" timeout 20 grep -qam1 nothing-there full
finish
