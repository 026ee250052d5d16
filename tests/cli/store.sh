#!/bin/bash
# Which store is used, what is shown of it, and what a broken one answers.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

# The default: a file of the user. Root has another one, which a test must not touch.
unset SYNCGUARD_URL
if [ "$(id -u)" != 0 ]; then
    default=$XDG_STATE_HOME/syncguard/locks.db
    exits "default" 0 run -v k -- true
    check "-v shows the file" contains "$err" "sqlite:$default"
    check "made" [ -f "$default" ]
    same "mode of the file" 600 "$(stat -c %a "$default")"
    same "mode of its folder" 700 "$(stat -c %a "$(dirname "$default")")"
else
    # As another user, in the same home.
    chown -R nobody "$WORK"
    as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
    if "${as_nobody[@]}" test -x "$SG"; then
        code=0
        "${as_nobody[@]}" "$SG" run -v k -- true 2>err || code=$?
        default=$XDG_STATE_HOME/syncguard/locks.db
        same "default" 0 $code
        check "-v shows the file" grep -q "sqlite:$default" err
        same "mode of the file" 600 "$(stat -c %a "$default")"
        same "mode of its folder" 700 "$(stat -c %a "$(dirname "$default")")"
    else
        echo "the build folder is closed to other users: the default file was not tried"
    fi
fi

# Environment, option, file; the option wins.
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

# Nothing of a password, wherever it stands.
for url in redis://user:hunter2@127.0.0.1:1/0 redis://:hun/ter2@127.0.0.1:1 \
    'redis://u:hun?ter2@127.0.0.1:1' 'redis://127.0.0.1:1/?password=hunter2' \
    'postgres://127.0.0.1:1/db?password=hunter2' redis:u:hunter2@127.0.0.1; do
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

# memory: starts empty each time.
exits "memory" 0 run -b memory: k -- true
exits "memory" 1 status -b memory: k
finish
