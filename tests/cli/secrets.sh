#!/bin/bash
# Every command, good and bad: the lock id, which is the right to release, is printed only by
# acquire, with --raw, and by extend --json, which repeats it to the caller that passed it. Findings
# and log lines of the library contain no key either.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
mark=M4rk3dK3y

# quiet ARGUMENTS...: neither stream contains the id.
quiet() {
    run_sg "$@"
    case $1 in
    extend) out=${out/#{\"lockId\":\"$id\",/} ;;
    esac
    check "$1 tells no id" lacks "$out$err" "$id"
}

run_sg acquire -v $mark
id=$(sed -n 's/^lockId: //p' out)
same "it has an id" 22 ${#id}
check "only in its output" lacks "$err" "$id"
for options in -v '-v --json'; do
    # shellcheck disable=SC2086 # several words
    {
        quiet acquire $options -n $mark
        quiet acquire $options -w 100ms $mark
        quiet status $options $mark
        quiet status $options --id "$id"
        quiet list $options
        quiet doctor $options
        check "doctor tells no key" lacks "$out$err" $mark
        quiet extend $options "$id"
    }
done
quiet run -v -n $mark -- true
quiet run -v -w 100ms $mark -- true
quiet run -v -n -b "sqlite:$WORK/no/such/locks.db" $mark -- true
quiet setup -v
check "setup tells no key" lacks "$out$err" $mark
quiet setup -v --print
quiet release -v "$id"
quiet release -v "$id"
quiet extend -v "$id"
quiet status -v $mark
run_sg acquire $mark
id=$(sed -n 's/^lockId: //p' out)
quiet release -v --key $mark --force
same "released" 0 "$code"
quiet run -v $mark -- true
quiet run -v $mark -- false
quiet run -v $mark -- ./not-there
# A malformed lock id is not repeated either: it may be a valid one with a typing error.
for command in release extend 'status --id'; do
    # shellcheck disable=SC2086 # several words
    run_sg $command ${mark}/
    check "$command does not repeat it" lacks "$out$err" $mark
done
# shellcheck disable=SC2016 # the child expands it
run_sg run -v $mark -- sh -c 'echo $SYNCGUARD_LOCK_ID >id; "$0" release $SYNCGUARD_LOCK_ID; sleep 0.1' "$SG"
same "its own id" 23 "$(wc -c <id)"
check "a lost lock tells no id" lacks "$out$err" "$(cat id)"
finish
