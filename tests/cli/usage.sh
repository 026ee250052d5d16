#!/bin/bash
# Bad command lines: exit 64 and one line that says what is wrong and how to get help.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# bad WORD ARGUMENTS...: the line holds the word.
bad() {
    local word=$1
    shift
    run_sg "$@"
    same "syncguard $*: exit code" 64 "$code"
    same "syncguard $*: nothing on stdout" "" "$out"
    check "syncguard $*: one line" one_line "$err"
    check "syncguard $*: says '$word'" contains "$err" "$word"
    check "syncguard $*: points to the help" contains "$err" "--help'"
    check "syncguard $*: has the common form" [ "${err#syncguard: }" != "$err" ]
}

bad "no command"
bad "frobnicate" frobnicate
bad "after the command" -b memory: list
bad "key" run
bad "command" run k
bad "command" run k --
bad "shared" run -s k true
bad "shared" run --shared k true
bad "release" run -u k
bad "one string" run k -c
bad "one string" run k -c true true
bad "one string" run -c true k true
bad "together" acquire -q --json k
bad "-n" run k -n true
bad "-q" list -q
bad "--nope" run --nope k true
bad "-w needs a value" run -w
bad "--ttl needs a value" acquire k --ttl
bad "takes no value" acquire --json=1 k
bad "--wait" run -w abc k true
bad "--wait" run -w "" k true
bad "--wait" run -w -5 k true
bad "--wait" run -w "5 s" k true
bad "--wait" run -w 5x k true
bad "--wait" run -w 1e3 k true
bad "--wait" run -w . k true
bad "--wait" run -w 1. k true
bad "--wait" run -w 99999999999999999999999 k true
bad "--ttl" run --ttl 0 k true
bad "--ttl" run --ttl 9007199254740992ms k true
bad "--ttl" run --ttl 106751991168d k true
bad "--conflict-exit-code" run -E 256 k true
bad "--conflict-exit-code" run -E x k true
bad "--conflict-exit-code" run -E -1 k true
bad "together" run -n -w 1 k true
bad "--on-lost" run --on-lost=ignore k true
bad "--grace" run --ttl 3s --grace 2s k true
bad "key" acquire
bad "too many" acquire a b
bad "key" acquire ""
bad "lock id" release
bad "lock id" release short
bad "lock id" extend "aaaaaaaaaaaaaaaaaaaaa="
bad "lock id" status --id short
bad "--id" status
bad "together" status k --id aaaaaaaaaaaaaaaaaaaaaa
bad "too many" list k l
bad "together" list --watch --json
bad "terminal" list --watch
bad "--force" release --key k
bad "--key" release --force aaaaaaaaaaaaaaaaaaaaaa
bad "--key" release --syslog aaaaaaaaaaaaaaaaaaaaaa
bad "together" release --key k --force aaaaaaaaaaaaaaaaaaaaaa
bad "UTF-8" acquire $'\xff'
bad "512" acquire "$(head -c 513 /dev/zero | tr '\0' k)"
bad "" run -b nosuch:thing k true
bad "" run -b sqlite:locks.db?nosuch=1 k true
bad "URL" run -b "" k true
bad "nofile" run -b @nofile k true

# Values that may hold a password are not repeated.
for arguments in "--bakend=redis://u:pw-marker-2@h" "-b redis://u:pw-marker-2@h?nosuch=pw-marker-2" \
    "-b nosuch://u:pw-marker-2@h" "-b redis://u:pw-marker-2@h:port" "-b redis://h?prefix=a&pw-marker-2" \
    "k -bredis://u:pw-marker-2@h" "k --backend=redis://u:pw-marker-2@h"; do
    # shellcheck disable=SC2086 # several words
    run_sg run -v -n $arguments k true
    check "no password in the answer to $arguments" lacks "$err" pw-marker-2
done
for arguments in "redis://u:pw-marker-2@h" "pw-marker-2"; do
    run_sg "$arguments" list
    same "no command: $arguments" 64 "$code"
    check "no password in the answer to $arguments" lacks "$err" pw-marker
done

# Good durations. A busy machine needs some time even for the first attempt.
"$SG" run held -- sleep 60 &
holder=$!
until_true 20 held held
for duration in 0 1.5 1500ms 0.025m 0.0004h; do
    exits "-w $duration" 75 run -w $duration held true
done
kill $holder
wait $holder

# --help is not an error.
for command in run acquire release extend status list prune setup config doctor bench version; do
    exits "$command --help" 0 $command --help
    check "$command --help goes to stdout" contains "$out" "usage: syncguard $command"
    same "$command --help: quiet" "" "$err"
done
exits "--help" 0 --help
exits "help run" 0 help run
exits "--version" 0 --version
finish
