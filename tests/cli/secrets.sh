#!/bin/bash
# Every command, good and bad, with a marked key: what is printed has neither key nor lock id, but
# where it is asked for (acquire prints the id, --raw prints both) or, as SECURITY.md lists them,
# repeated to who gave it: the key by status and by the line that says what is waited for, the id by
# extend --json.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
mark=M4rk3dK3y

# quiet ARGUMENTS...: neither stream tells the key or the id.
quiet() {
    run_sg "$@"
    err=$(grep -v "^syncguard: waiting .* for '$mark' (held by" <<<"$err")
    case $1 in
    status) out=$(sed "s/^key: $mark\$//; s/\"key\":\"$mark\",//" <<<"$out") ;;
    extend) out=${out/#{\"lockId\":\"$id\",/} ;;
    esac
    check "$1 tells no key" lacks "$out$err" $mark
    [ -z "$id" ] || check "$1 tells no id" lacks "$out$err" "$id"
}

id=
run_sg acquire -v $mark
check "acquire tells no key" lacks "$out$err" $mark
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
        check "status --id does not tell the key either" lacks "$(cat out err)" $mark
        quiet list $options
        quiet doctor $options
        quiet extend $options "$id"
        quiet extend $options ${mark}/
        quiet release $options ${mark}/
    }
done
quiet run -v -n $mark -- true
quiet run -v -w 100ms $mark -- true
quiet run -v -n $mark$'\xff' -- true
quiet run -v -n "$mark$(printf 'x%.0s' {1..600})" -- true
quiet run -v -n -b "sqlite:$WORK/no/such/locks.db" $mark -- true
quiet setup -v
quiet setup -v --print
quiet release -v "$id"
quiet release -v "$id"
quiet extend -v "$id"
quiet status -v $mark
quiet run -v $mark -- true
quiet run -v $mark -- false
quiet run -v $mark -- ./not-there
# shellcheck disable=SC2016 # the child expands it
quiet run -v $mark -- sh -c '"$0" release $SYNCGUARD_LOCK_ID; sleep 0.1' "$SG"
finish
