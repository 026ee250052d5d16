#!/bin/bash
# The URL in a file or a pipe: comments and blanks around it; an empty pipe stops neither signals nor -w.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
unset SYNCGUARD_URL
mkdir -p "$XDG_CONFIG_HOME/syncguard"
file=$XDG_CONFIG_HOME/syncguard/url
db=sqlite:$WORK/file.db

# Comments, blank lines and blanks around the URL, in each place.
printf '# the store of the team\n\n   \t\n  # not this: sqlite:/no\r\n\t %s \t\r\nsecond line\n' "$db" >url
cp url "$file"
exits "the user's file" 0 config --json
same "its URL" "$db" "$(json store)"
exits "-b" 0 config --json -b @url
same "its URL" "$db" "$(json store)"
SYNCGUARD_URL=@url exits "SYNCGUARD_URL" 0 config --json
same "its URL" "$db" "$(json store)"
printf '%s' "$db" >url
exits "no end of line" 0 config --json -b @url
same "its URL" "$db" "$(json store)"
printf '# only this\n' >url
exits "only a comment" 64 config -b @url
check "says so" contains "$err" "there is no URL in url"
printf 'sqlite:/%09000d\n' 1 >url
exits "too long" 64 config -b @url
exits "a folder" 64 config -b "@$WORK"
check "says so" contains "$err" "not a regular file"
exits "a device" 64 config -b @/dev/zero
exits "no such file" 64 config -b @not-there
check "names it" contains "$err" "-b names the file 'not-there', which does not exist"

# A pipe in place of the configured file: the user did not choose it for this command.
rm "$file"
mkfifo fifo "$file"
code=0
timeout 20 "$SG" run k -- true 2>err || code=$?
same "the user's file is a pipe" 64 $code
check "says so" grep -q "not a regular file" err
rm "$file"

# A pipe without a writer.
for command in "run -w 1s -b @fifo k -- true" "acquire -w 1s -b @fifo k"; do
    code=0
    # shellcheck disable=SC2086 # words
    timeout 20 "$SG" $command 2>err || code=$?
    same "$command ends" 69 $code
    check "$command says why" grep -q "no URL came from the pipe fifo in time" err
done
# shellcheck disable=SC2317 # until_true calls it
has_opened() { [ -n "$(find "/proc/$1/fd" -lname "*/$2")" ]; }
for signal in TERM HUP; do
    for options in "" "-n" "-w 1h"; do
        # shellcheck disable=SC2086 # words
        SYNCGUARD_URL=@fifo "$SG" run $options k -- touch ran &
        runner=$!
        check "it waits" until_true 20 has_opened $runner fifo
        kill -$signal $runner
        check "run $options ends by SIG$signal" until_true 10 gone $runner
        kill -9 $runner 2>/dev/null
        code=0
        wait $runner || code=$?
        same "run $options died of SIG$signal" $((128 + $(kill -l $signal))) $code
    done
done
check "nothing ran" [ ! -e ran ]
# A signal that comes as soon as it is caught: when the command creates its abort object.
cat >early.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
int syncguard_abort_create(void **out, void *err)
{
    int (*create)(void **, void *) = dlsym(RTLD_NEXT, "syncguard_abort_create");
    raise(SIGTERM);
    return create(out, err);
}
C
if cc -shared -fPIC -U_FORTIFY_SOURCE -o early.so early.c -ldl 2>/dev/null; then
    code=0
    LD_PRELOAD="$(ldd "$SG" | awk '$1 ~ /^lib[at]san/ { print $3 }') $WORK/early.so" \
        timeout -s KILL 20 "$SG" run -b @fifo k -- touch ran || code=$?
    same "an early SIGTERM" 143 $code
else
    check "the library with the early signal is built" false
fi

# A pipe that is slow, and one that stays open after the line.
code=0
"$SG" run -n -b @<(sleep 1; echo "# slow"; sleep 1; echo "$db") k -- touch ran || code=$?
same "a slow one" 0 $code
check "it ran" [ -e ran ]
exec 8<>fifo
echo "$db" >&8
code=0
timeout 20 "$SG" run -b @fifo k -- true || code=$?
same "an open one" 0 $code
exec 8>&-
finish
