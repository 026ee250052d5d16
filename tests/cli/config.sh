#!/bin/bash
# Where the store comes from: -b, SYNCGUARD_URL, the file of the user, that of the machine, the
# default. Commands that only read create nothing. A password does not reach the program.
# shellcheck disable=SC2016 # the child expands it
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
mkdir -p "$XDG_CONFIG_HOME/syncguard"
file=$XDG_CONFIG_HOME/syncguard/url
source_is() { # TEXT SOURCE STORE ARGUMENTS...
    local text=$1 from=$2 store=$3
    shift 3
    exits "$text" 0 config --json "$@"
    same "$text: source" "$from" "$(json source)"
    same "$text: store" "$store" "$(json store)"
}

export SYNCGUARD_URL=sqlite:$WORK/environment.db
echo "sqlite:$WORK/file.db" >"$file"
source_is "-b wins" -b "sqlite:$WORK/option.db" -b "sqlite:$WORK/option.db"
source_is "the environment" SYNCGUARD_URL "sqlite:$WORK/environment.db"
exits "config for people" 0 config
check "the store" grep -qx "store: sqlite:$WORK/environment.db" out
check "which one" grep -Eqx -- '-> SYNCGUARD_URL +used' out
check "which not" grep -Eqx -- "   $file +set, but not used" out
exits "it is used" 0 run k -- true
check "it is used" [ -f environment.db ]

exits "a label that is too long" 64 run --owner "$(printf 'o%.0s' {1..129})" k -- true
check "is told from a bad URL" contains "$err" "the owner label is longer than 128 bytes (see 'syncguard run --help')"

# @FILE, also from a pipe, which can be read only once.
printf 'sqlite:%s/at.db\nsecond line\n' "$WORK" >url
SYNCGUARD_URL=@$WORK/url source_is "a file named by the environment" SYNCGUARD_URL "sqlite:$WORK/at.db"
code=0
SYNCGUARD_URL=@<(echo "sqlite:$WORK/pipe.db") "$SG" run k -- true || code=$?
same "a pipe" 0 $code
check "is read once" [ -f pipe.db ]
SYNCGUARD_URL=@$WORK/not-there exits "a file that is not there" 64 config
check "names it" contains "$err" not-there

# Empty is not "not set".
SYNCGUARD_URL='' exits "empty" 64 run k -- touch ran
check "says so" contains "$err" "SYNCGUARD_URL is empty"
check "nothing ran" [ ! -e ran ]

unset SYNCGUARD_URL
source_is "the user's file" "$file" "sqlite:$WORK/file.db"
exits "it is used" 0 run k -- true
check "it is used" [ -f file.db ]
: >"$file"
exits "an empty file is no reason to take another store" 64 run k -- touch ran
check "names it" contains "$err" "$file"
rm "$file"
mkdir "$file"
exits "nor is a folder" 64 run k -- touch ran
check "nothing ran" [ ! -e ran ]
rmdir "$file"
HOME=$WORK/other
mkdir -p "$HOME/.config/syncguard"
echo "sqlite:$WORK/home.db" >"$HOME/.config/syncguard/url"
(
    unset XDG_CONFIG_HOME
    "$SG" config --json
) >out
out=$(cat out)
same "below HOME" "sqlite:$WORK/home.db" "$(json store)"

# The file of the machine: in a new mount namespace, if the system permits one.
mkdir -p etc/syncguard
cp /etc/passwd /etc/ld.so.cache etc/ 2>/dev/null
echo "sqlite:$WORK/machine.db" >etc/syncguard/url
if unshare -rm sh -c "mount --bind etc /etc" 2>/dev/null; then
    unshare -rm sh -c 'mount --bind etc /etc && "$0" config --json' "$SG" >out
    out=$(cat out)
    same "the machine's file" /etc/syncguard/url "$(json source)"
    same "its store" "sqlite:$WORK/machine.db" "$(json store)"
else
    echo "SKIP config_of_the_machine: no mount namespace can be made"
fi
if [ ! -e /etc/syncguard/url ]; then
    exits "nothing is set" 0 config
    check "the default" grep -Eqx -- '-> default +used, because nothing above is set' out
fi

# A URL that is not valid: the message says where it is from.
for url in pw-marker-2 'redis://:pw-marker-2@host:99999'; do
    [ -e "$(dirname "$SG")/libsyncguard-redis.so.0" ] || [ "${url#redis}" = "$url" ] || continue
    SYNCGUARD_URL=$url exits "not valid" 64 list
    check "where it is from" contains "$err" "'syncguard config' shows where the URL comes from"
    check "which variable" contains "$err" "in the URL from SYNCGUARD_URL;"
    echo "$url" >bad-url
    exits "in a file" 64 list -b @bad-url
    check "which file" contains "$err" "in the URL from -b @bad-url;"
    cp bad-url "$file"
    exits "in the user's file" 64 list
    check "that file" contains "$err" "in the URL from $file;"
    exits "setup, too" 64 setup
    check "that file" contains "$err" "in the URL from $file;"
    rm "$file"
    exits "not valid" 64 list -b "$url"
    check "with -b" contains "$err" "the URL given with -b: "
    check "points to the help" contains "$err" "(see 'syncguard list --help')"
done

# A file that cannot be read is named, and is not a fault of the command line.
mkdir "$file"
exits "a folder in place of the file" 64 run -n k true
check "names it" contains "$err" "cannot read the URL from $file: it is not a regular file"
check "not the options" lacks "$err" "--help"
rmdir "$file"

# A file that is refused is not a fault of the command line.
mkdir shared
chmod 777 shared
SYNCGUARD_URL=sqlite:$WORK/shared/x.db exits "an unsafe folder" 64 run -n k true
check "names it" contains "$err" "$WORK/shared: "
check "and the place of the URL" contains "$err" "the URL comes from SYNCGUARD_URL)"
check "not the options" lacks "$err" "--help"

# A URL that no command can use: config says so, and names its source.
SYNCGUARD_URL=bogus://x exits "an unknown scheme" 64 config
check "where it is from" grep -Eqx -- '-> SYNCGUARD_URL +used' out
check "what is wrong" contains "$err" "no command can use this URL: the scheme bogus is not known"
exits "as JSON" 64 config --json -b bogus://x
same "not valid" false "$(json valid)"
exits "another one" 0 config --json -b "sqlite:$WORK/nothing.db"
same "valid" true "$(json valid)"
exits "a server that is down" 0 config --json -b redis://127.0.0.1:1
check "is not said to be usable" lacks "$out" usable
for command in config list doctor "status k" "release aaaaaaaaaaaaaaaaaaaaaa"; do
    # shellcheck disable=SC2086 # words
    exits "$command: a wrong option, and no file" 64 $command -b "sqlite:$WORK/nothing.db?durablity=full"
    check "$command: says which" contains "$err" "option durablity is not known"
done
check "nothing is created" [ ! -e nothing.db ]
if [ -e "$(dirname "$SG")/libsyncguard-redis.so.0" ]; then
    exits "a port that is none" 64 list -b redis+sentinel://a,b:x/main
    check "which host" contains "$err" "hosts, number 2: the port is not a number"
fi

# Reading creates nothing.
id=aaaaaaaaaaaaaaaaaaaaaa
for arguments in "0 list" "0 list --json" "1 status k" "1 release $id" "1 extend $id" \
    "1 release --key k --force" "1 doctor"; do
    # shellcheck disable=SC2086 # words
    exits "$arguments" $arguments -b "sqlite:$WORK/new%20folder/locks.db"
    check "$arguments says so" contains "$err" "does not exist yet"
done
check "nothing is created" [ ! -e "new folder" ]
exits "status --json" 1 status --json -b "sqlite:$WORK/nothing.db" k
same "free" false "$(json held)"
check "nothing is created" [ ! -e nothing.db ]

# Passwords.
exits "config" 0 config -b redis://user:pw-marker-2@host:1/0
check "the host" grep -qx 'store: redis://host:1/0' out
check "no password" lacks "$out$err" pw-marker-2
see='echo "$SYNCGUARD_URL" >seen'
for url in redis://user:pw-marker-2@127.0.0.1:1 'postgres://h/db?password=pw-marker-2'; do
    SYNCGUARD_URL=$url exits "run" 0 run -b "sqlite:$WORK/locks.db" k -c "$see"
    same "$url is not inherited" "" "$(cat seen)"
done
SYNCGUARD_URL=redis://:pw-marker-2@127.0.0.1:1 exits "a nested command" 64 run -b "sqlite:$WORK/locks.db" k -- "$SG" status k
check "fails, and says why" contains "$err" --export-url
SYNCGUARD_URL=redis://127.0.0.1:1 exits "run" 0 run -b "sqlite:$WORK/locks.db" k -c "$see"
same "without a password it is" redis://127.0.0.1:1 "$(cat seen)"
exits "--export-url" 0 run --export-url -b "sqlite:$WORK/locks.db" k -c "$see"
same "the URL of -b" "sqlite:$WORK/locks.db" "$(cat seen)"
finish
