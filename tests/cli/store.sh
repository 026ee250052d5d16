#!/bin/bash
# The choice of the store, how it is shown, and the errors of a broken one.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# The default: a file of the user. Root has another one, which a test must not touch, so root
# becomes another user.
unset SYNCGUARD_URL
as_user=()
if [ "$(id -u)" = 0 ]; then
    # Other users may not have access to the folder of the build: they get a copy.
    mkdir bin
    cp -a "$SG" "$(dirname "$SG")"/libsyncguard*.so* bin
    SG=$WORK/bin/$(basename "$SG")
    chown -R nobody "$WORK"
    as_user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
fi
user_sg() {
    code=0
    "${as_user[@]}" "$SG" "$@" 2>err >out || code=$?
    err=$(cat err)
}
default=$XDG_STATE_HOME/syncguard/locks.db
user_sg run -v k -- true
same "default" 0 $code
check "-v shows the file" contains "$err" "sqlite:$default"
same "mode of the file" 600 "$(stat -c %a "$default")"
same "mode of its folder" 700 "$(stat -c %a "$(dirname "$default")")"

# A fresh account: missing folders of the default path are created, for the user alone.
export XDG_STATE_HOME=$HOME/not/there/yet
user_sg run k -- true
same "missing XDG_STATE_HOME" 0 $code
same "mode of its folders" 700 "$(stat -c %a "$HOME/not")"
unset XDG_STATE_HOME
user_sg run k -- true
same "empty home" 0 $code
check "the file is there" [ -f "$HOME/.local/state/syncguard/locks.db" ]
for folder in .local .local/state .local/state/syncguard; do
    same "mode of $folder" 700 "$(stat -c %a "$HOME/$folder")"
done
user_sg status k
same "and is found again" 1 $code

# But folders of an explicit path are not created, nor is a home that does not exist.
user_sg run -b "sqlite:$HOME/.else/state/syncguard/locks.db" k -- true
same "given: only the last folder" 69 $code
check "nothing is made" [ ! -e "$HOME/.else" ]
HOME=$HOME/gone user_sg run k -- true
same "no home" 69 $code
check "names the folder" contains "$err" "/gone/.local"
check "one line" one_line "$err"
check "no home is made" [ ! -e "$HOME/gone" ]

# A missing permission, of the default folder and of one that was given.
mkdir closed
chmod 555 closed
for url in "" "sqlite:$WORK/closed/locks.db"; do
    HOME=$WORK/closed user_sg run ${url:+-b "$url"} k -- true
    same "no permission ${url:-by default}" 77 $code
    check "names the place" contains "$err" "$WORK/closed/"
    check "and what to check" contains "$err" "the owner and the mode of the file and of its folder"
    check "one line" one_line "$err"
done

# The environment of cron, and worse: no HOME, no variables at all, standard streams closed.
HOME='' user_sg run k -- true
same "no HOME" 64 $code
check "says what to set" contains "$err" SYNCGUARD_URL
env -i "${as_user[@]}" "$SG" run -b "sqlite:$HOME/cron.db" k -- true 2>err
same "empty environment" 0 $?
user_sg run k -- true <&-
same "stdin closed" 0 $code
"${as_user[@]}" "$SG" run k -- true >&- 2>&- <&-
same "all closed" 0 $?
# Messages are dropped: another descriptor may have got the number of stderr.
"${as_user[@]}" "$SG" run k -- sh -c 'echo >up; exec sleep 60' >&- 2>&- <&- &
runner=$!
until_true 20 test -s up
for number in 0 1 2; do
    same "number $number is taken" /dev/null "$(readlink /proc/$runner/fd/$number)"
    check "not in the child" [ ! -e "/proc/$(pgrep -P $runner -x sleep)/fd/$number" ]
done
kill $runner
wait $runner
check "the default file is still one" \
    cmp -s -n 15 <(printf 'SQLite format 3') "$HOME/.local/state/syncguard/locks.db"

# File modes that forbid access: exit 77. Root does not write to a folder of a user, who could place links there.
user_sg run -b "sqlite:$HOME/shared.db" k -- true
if [ "$(id -u)" = 0 ]; then
    rm -f "$HOME/shared.db-wake"
    exits "root is refused" 64 run -n -b "sqlite:$HOME/shared.db" k -- true
    check "says why" contains "$err" "another user"
    check "makes nothing" [ ! -e "$HOME/shared.db-wake" ]
    user_sg run -b "sqlite:$HOME/shared.db" k -- true
    same "the user still can" 0 $code
fi
chmod 444 "$HOME/shared.db"
user_sg run -n -b "sqlite:$HOME/shared.db" k -- true
same "may not write" 77 $code
check "one line" one_line "$err"
check "the file" contains "$err" "$HOME/shared.db: "
check "where its URL is from" contains "$err" "; the URL comes from -b)"
chmod 000 "$HOME/shared.db"
SYNCGUARD_URL=sqlite:$HOME/shared.db user_sg list
same "may not read" 77 $code
check "the file" contains "$err" "$HOME/shared.db: "
check "where its URL is from" contains "$err" "; the URL comes from SYNCGUARD_URL)"

# Environment, option, file; the option wins. From here on the folder is ours.
chown -R "$(id -u)" "$WORK"
export SYNCGUARD_URL=sqlite:$WORK/environment.db
exits "environment" 0 run k -- true
check "made" [ -f environment.db ]
exits "option" 0 run -b "sqlite:$WORK/option.db" k -- true
check "made" [ -f option.db ]
printf 'sqlite:%s/file.db \nsecond line\n' "$WORK" >url
exits "file" 0 run -b @url k -- true
check "made" [ -f file.db ]
printf '' >url
exits "empty file" 64 run -b @url k -- true
exits "a folder" 64 run -b "@$WORK" k -- true

# No part of a password, wherever it is.
for url in redis://user:pw-marker-hunter2@127.0.0.1:1/0 redis://:hun/ter2@127.0.0.1:1 \
    'redis://u:hun?ter2@127.0.0.1:1' 'redis://127.0.0.1:1/?password=pw-marker-hunter2' \
    'postgres://127.0.0.1:1/db?password=pw-marker-hunter2' redis:u:pw-marker-hunter2@127.0.0.1; do
    run_sg status -v -b "$url" k
    check "no success on $url" [ "$code" -ge 64 ]
    check "no password of $url" lacks "${err/hun?ter2/hunter2}" hunter2
    check "no part of it" lacks "$err" ter2
done

# Broken stores: an exit code, and the file's name.
exits "missing folders" 69 run -n -b "sqlite:$WORK/no/such/folder/locks.db" k -- true
check "names the place" contains "$err" no/such
echo 'this is no database, but long enough to be looked at: 0123456789 0123456789' >foreign.db
cp foreign.db before.db
run_sg run -n -b "sqlite:$WORK/foreign.db" k -- true
check "foreign file: exit code $code" [ "$code" = 69 -o "$code" = 64 -o "$code" = 70 ]
check "names the file" contains "$err" foreign.db
check "one line" one_line "$err"
check "left untouched" cmp -s foreign.db before.db
mkdir folder.db
run_sg run -n -b "sqlite:$WORK/folder.db" k -- true
check "a folder: exit code $code" [ "$code" = 69 -o "$code" = 64 ]

# A limit on the size of files: an error, not a signal; the child gets the limit and its signal.
code=0
err=$( (ulimit -f 0 && exec "$SG" run -n -b "sqlite:$WORK/limit.db" k -- true) 2>&1) || code=$?
same "no file may grow" 69 $code
check "names the file" contains "$err" limit.db
check "speaks of no server" contains "$err" "check the file, its folder and the disk"
code=0
(ulimit -f 0 && exec "$SG" run -b memory: k -- sh -c 'echo x >grown') || code=$?
check "the child dies of it, $code" [ $code = $((128 + $(kill -l XFSZ))) -o $code = 1 -o $code = 2 ]

# However few descriptors there are, no lock stays without a holder.
for number in 7 8 9 10 11 12 13 14; do
    code=0
    # (The leak detector of a sanitizer build needs some itself.)
    (export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
        ulimit -n $number && exec "$SG" run -n few$number -- true) 2>/dev/null || code=$?
    check "$number descriptors: exit code $code" [ $code = 0 -o $code = 64 -o $code = 69 -o $code = 71 ]
    exits "$number descriptors: free" 1 status few$number
done

# memory: ends with the command: only run can use it.
exits "memory" 0 run -b memory: k -- true
for arguments in "acquire k" "status k" list "release aaaaaaaaaaaaaaaaaaaaaa" "extend aaaaaaaaaaaaaaaaaaaaaa"; do
    # shellcheck disable=SC2086 # words
    exits "memory: $arguments" 64 $arguments -b memory:
    check "says why" contains "$err" "use it with run only"
done
finish
