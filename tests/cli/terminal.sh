#!/bin/bash
# The command at a terminal, under an interactive shell: reading, Ctrl-C, Ctrl-Z, and the status
# line of a wait. tmux is the terminal.
# shellcheck disable=SC2016,SC2317 # the shell in the terminal expands; traps call functions
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

export TMUX_TMPDIR=$WORK LC_ALL=C.UTF-8 SG
unset TMUX TMUX_PANE BASH_ENV ENV PROMPT_COMMAND
tmux_() { tmux -L test -f /dev/null "$@"; }
end_terminal() {
    [ "$BASHPID" = "$$" ] || return
    tmux_ kill-server 2>/dev/null
    at_exit
}
trap end_terminal EXIT

screen() { tmux_ capture-pane -p -J; }
on_screen() { screen | grep -Eq -- "$1"; }
# sees TEXT PATTERN: within a generous time.
sees() {
    check "$1: /$2/ appears" until_true 20 on_screen "$2" || screen | sed '/^$/d; s/^/    screen: /'
}
lacks_row() { ! on_screen "^$1 "; }
lacks_line() { ! screen | grep -Fqx -- "$1"; }
keys() { tmux_ send-keys "$@"; }
# Each piece of work begins on an empty screen, with a prompt of its own number.
number=0
fresh() {
    number=$((number + 1))
    keys "PS1='ready$number> '; clear" Enter
    until_true 20 on_screen "^ready$number>" || check "a prompt" false
}

check "a terminal" tmux_ new-session -d -x 120 -y 30 'bash --norc --noprofile -i' || finish

fresh
keys '$SG run k -- cat' Enter
until_true 20 held k
keys 'hello' Enter
sees "the child reads" '^hello$'
keys C-d
sees "and ends" "^ready$number> *$"
keys 'echo code=$?' Enter
sees "exit code" '^code=0'

fresh
keys '$SG run k -- sleep 100' Enter
until_true 20 held k
sleep 0.3
keys C-c
sees "Ctrl-C ends the child" "\^C"
keys 'echo code=$?' Enter
sees "exit code" '^code=130'
check "released" until_true 10 free k

fresh
keys '$SG run k -- sh -c "echo begin; sleep 3; echo finis\\h"' Enter
sees "started" '^begin'
keys C-z
sees "Ctrl-Z gives the prompt back" 'Stopped'
check "still held" held k
keys 'fg; echo code=$?' Enter
sees "continued" '^finish'
sees "exit code" '^code=0'

fresh
keys '$SG run --ttl 3s k -- sh -c "echo begin; sleep 30; echo finis\\h"' Enter
sees "started" '^begin'
keys C-z
sees "stopped" 'Stopped'
check "free when the lease is over" until_true 20 free k
keys 'fg; echo code=$?' Enter
sees "reported" "lock 'k' (is|was) lost"
sees "ended" '^code=76'
check "and did not go on" lacks "$(screen)" finish

# The status line shows the holder, and disappears at the end.
"$SG" run --owner somebody k -- sleep 100 &
holder=$!
until_true 20 held k
fresh
keys '$SG run k -- echo mi\ne' Enter
sees "who holds it" "^waiting for 'k'.*: held by somebody for .*, lease ends in .*s"
kill $holder
wait $holder
sees "its turn" '^mine'
check "the line is gone" lacks "$(screen)" "waiting"

"$SG" run k -- sleep 100 &
holder=$!
until_true 20 held k
fresh
keys '$SG run k -- echo mi\ne' Enter
sees "waits" "^waiting"
keys C-c
keys 'echo code=$?' Enter
sees "Ctrl-C ends the waiting" '^code=130'
check "nothing ran" lacks "$(screen)" mine
keys '$SG run -n k -- echo mi\ne' Enter
sees "-n says why" "'k' is held by tester@.*, expires in"
kill $holder
wait $holder

# A line as wide as the terminal has room for the ^C, and disappears as a shorter one does.
"$SG" run --owner "$(printf '%0120d' 7)" k -- sleep 100 &
holder=$!
until_true 20 held k
fresh
keys '$SG run k -- true' Enter
sees "waits" "^waiting .*0000"
keys C-c
sees "the prompt is back" "^ready$number> *$"
check "the line is gone" lacks "$(screen)" waiting
kill $holder
wait $holder

# A store that refuses, and one that does not answer: both are reported repeatedly, and Ctrl-C
# ends the waiting at once.
if [ -e "$(dirname "$SG")/libsyncguard-redis.so.0" ]; then
    python3 -c 'import socket, sys, time
refusing, silent = socket.socket(), socket.socket()
refusing.bind(("127.0.0.1", 0))
silent.bind(("127.0.0.1", 0))
silent.listen(20)
print(refusing.getsockname()[1], silent.getsockname()[1], flush=True)
time.sleep(120)' >ports &
    servers=$!
    until_true 20 test -s ports
    read -r refusing silent <ports
    for port in $refusing $silent; do
        fresh
        keys '$SG run -b redis://127.0.0.1:'"$port"' k -- echo mi\ne' Enter
        sees "what is wrong" '^still trying after .*(ServiceUnavailable|NetworkTimeout)'
        line=$(screen | grep '^still trying')
        check "reported again" until_true 20 lacks_line "$line"
        sees "still" '^still trying'
        keys C-c
        begun=$(now_ms)
        sees "the prompt is back" "^ready$number> *$"
        check "at once" [ $(($(now_ms) - begun)) -lt 4000 ]
        keys 'echo code=$?' Enter
        sees "Ctrl-C ends the waiting" '^code=130'
        check "nothing ran" lacks "$(screen)" mine
    done
    kill $servers
    wait $servers 2>/dev/null
fi

# A script is interrupted as a whole, as it would be without syncguard.
cat >script <<'SCRIPT'
echo begin
"$SG" run k -- sleep 100
echo went on
SCRIPT
fresh
keys 'bash ./script' Enter
sees "script" '^begin'
until_true 20 held k
sleep 0.3
keys C-c
keys 'echo code=$?' Enter
sees "Ctrl-C ends the script" '^code=130'
check "it did not go on" lacks "$(screen)" "went on"

# So is a loop, also while it waits for a lock.
"$SG" run other -- sleep 100 &
holder=$!
until_true 20 held other
fresh
keys 'for key in k other; do $SG run $key -- sleep 100; echo went o\n; done' Enter
until_true 20 held k
sleep 0.3
keys C-c
sees "the prompt is back" "^ready$number> *$"
check "the loop did not continue" lacks "$(screen)" "went on"
keys 'for key in other k; do $SG run $key -- sleep 100; echo went o\n; done' Enter
sees "waits" "^waiting"
keys C-c
sees "the prompt is back" "^ready$number> *$"
check "the loop did not continue" lacks "$(screen)" "went on"
check "nothing of it runs" free k
kill $holder
wait $holder

# In a pipeline the other program keeps the terminal; a child that needs it gets it.
fresh
keys '$SG run k -- echo piped | sh -c "cat; read x </dev/tty; echo read \$x"' Enter
sees "pipeline" '^piped'
keys 'typed' Enter
sees "the neighbour reads" '^read typed'
fresh
keys 'echo | $SG run k -- sh -c "echo begin; read x </dev/tty; echo got \$x"' Enter
sees "started" '^begin'
keys 'typed' Enter
sees "the child reads" '^got typed'

# A child that is killed does not leave the terminal behind in a strange mode.
fresh
keys '$SG run k -- sh -c "stty raw -echo; kill -9 \$\$"; echo co\de=$?' Enter
sees "killed" '^code=137'
keys 'echo visi\ble' Enter
sees "modes are restored" '^visible$'

fresh
"$SG" run --owner somebody other -- sleep 100 &
holder=$!
until_true 20 held other
keys '$SG list --watch' Enter
sees "how many, and when" '^[-0-9]+ [:0-9]+ [-+][0-9]{4}   1 lock held$'
sees "a table with a heading" '^KEY +OWNER +HELD FOR +EXPIRES IN +FENCE$'
sees "a row" '^other +somebody .* [0-9]{15}$'
"$SG" acquire --ttl 1m second >/dev/null
sees "refreshed" '^second '
sees "in place" ' 2 locks held$'
same "one heading" 1 "$(screen | grep -c '^KEY ')"
kill $holder
wait $holder
check "what is released goes away" until_true 20 lacks_row other
keys C-c
keys 'echo code=$?' Enter
sees "Ctrl-C ends it" '^code=130'

# Wide characters in a narrow window: no row wraps, so the heading stays.
check "a narrow window" tmux_ resize-window -x 60 -y 13
for i in 1 2 3 4 5 6 7 8; do
    "$SG" acquire --ttl 5m --owner 日本語の所有者と日本語のホストの名前 "日本語のキー$i" >/dev/null
done
fresh
keys '$SG list --watch' Enter
sees "all are counted" ' 9 locks held$'
sees "the last row" '^日本語のキー8 +日本語の所有者と日本語のホストの名前 '
check "the heading is there" on_screen '^KEY +OWNER'
same "one line each" 9 "$(tmux_ capture-pane -p | grep -c '^日本語のキー\|^second ')"
same "and no more" 11 "$(tmux_ capture-pane -p | grep -c .)"
keys C-c
finish
