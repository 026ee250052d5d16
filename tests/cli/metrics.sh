#!/bin/bash
# run --metrics FILE: the contents, the times of writing, and the files that it must not touch.
# shellcheck disable=SC2317 # check calls functions
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
PROM=$WORK/folder/syncguard.prom
mkdir "$WORK/folder"

# value NAME: the value of the series of that name
value() {
    sed -nE "s/^syncguard_run_$1\{[^}]*\} //p" "$PROM"
}
well_formed() {
    python3 "$TESTS/docs/promtext.py" "$PROM"
}
# No temporary file is left.
alone() {
    [ "$(ls -A "$WORK/folder")" = syncguard.prom ]
}

before=$(date +%s)
umask 077
"$SG" run --metrics "$PROM" job -- sh -c 'sleep 0.3; exit 7'
same 'exit code of the program' 7 $?
umask 022
check 'well formed' well_formed
same 'mode' 644 "$(stat -c %a "$PROM")"
same 'exit code' 7.000 "$(value exit_code)"
same 'acquired' 1.000 "$(value acquired)"
same 'lost' 0.000 "$(value lost)"
check 'held for the time of the program' awk "BEGIN { exit !($(value hold_seconds) >= 0.3) }"
check 'when it ended' awk "BEGIN { t = $(value completion_timestamp_seconds); exit !(t >= $before && t <= $before + 120) }"
check 'the key is a label' grep -q '^syncguard_run_lost{key="job"} 0.000$' "$PROM"
check 'no temporary file' alone

# Several keys.
"$SG" run --metrics "$PROM" -k job -k "it's" -- true
check 'each key in quotes' grep -qF "syncguard_run_lost{key=\"'job', 'it's'\"} 0.000" "$PROM"

# Keys that must be escaped.
"$SG" run --metrics "$PROM" 'a "b" \ c
d }' -- true
check 'escaped' grep -qF 'syncguard_run_acquired{key="a \"b\" \\ c\nd }"} 1.000' "$PROM"
check 'escaped: well formed' well_formed
"$SG" run --metrics "$PROM" "$(printf 'k%.0s' {1..500})\"\"\"" -- true
check 'a long key: well formed' well_formed

"$SG" run --metrics "$PROM" -k "$(printf 'ü%.0s' {1..250})" -k "$(printf '"%.0s' {1..500})" \
    -k "$(printf 'ö%.0s' {1..250})" -k "$(printf 'ä%.0s' {1..250})" -k job -k "$(printf 'é%.0s' {1..250})" -- true
same 'several long keys' 0 $?
check 'several long keys: well formed' well_formed
check 'several long keys: what does not fit' grep -q ", \.\.\.\"} 1.000" "$PROM"

# A signal, a program that ends with 64 or 76, one that cannot be run.
"$SG" run --metrics "$PROM" job -- sh -c 'kill -TERM $$'
same 'a signal' 143.000 "$(value exit_code)"
"$SG" run --metrics "$PROM" job -- sh -c 'exit 64'
same 'exit code 64 of the program' 64.000 "$(value exit_code)"
"$SG" run --metrics "$PROM" job -- sh -c 'exit 76'
same 'exit code 76 of the program is no loss' "76.000 0.000" "$(value exit_code) $(value lost)"
"$SG" run --metrics "$PROM" job -- "$WORK/none" 2>/dev/null
same 'no such program' 127.000 "$(value exit_code)"

# Another owner holds the lock: the figures of the last run with the lock and the last success stay.
kept() {
    grep -E '^syncguard_run_(hold_seconds|lost|exit_code|completion_timestamp_seconds|success_timestamp_seconds)\{' "$PROM"
}
"$SG" run --metrics "$PROM" job -- true
success=$(value success_timestamp_seconds)
same 'a success is the end of its run' "$(value completion_timestamp_seconds)" "$success"
"$SG" run --metrics "$PROM" job -- sh -c 'exit 9'
same 'a failure keeps the last success' "9.000 $success" "$(value exit_code) $(value success_timestamp_seconds)"
check 'a failure ends after the last success' awk "BEGIN { exit !($(value completion_timestamp_seconds) > $success) }"
last=$(kept)
id=$("$SG" acquire -q --ttl 1m job)
"$SG" run -n -E 0 --metrics "$PROM" job -- true
same 'skipped' "0.000 0.000" "$(value attempt_exit_code) $(value acquired)"
same 'skipped: the last run stays' "$last" "$(kept)"
same 'five series stay' 5 "$(kept | wc -l)"
check 'skipped: the attempt is later' awk "BEGIN { exit !($(value attempt_timestamp_seconds) >= $(value completion_timestamp_seconds)) }"
check 'skipped: well formed' well_formed
"$SG" run -w 1 --metrics "$PROM" job -- true 2>/dev/null
same 'gave up' "75.000 0.000" "$(value attempt_exit_code) $(value acquired)"
same 'gave up: the last run stays' "$last" "$(kept)"
check 'waited' awk "BEGIN { exit !($(value wait_seconds) >= 1) }"
"$SG" release "$id"

# The store cannot be reached.
"$SG" run -n -b redis://127.0.0.1:1 --metrics "$PROM" job -- true 2>/dev/null
same 'no store' "69.000 0.000" "$(value attempt_exit_code) $(value acquired)"
same 'no store: the last run stays' "$last" "$(kept)"
# Figures of another key, or from a file that is not ours, are dropped, and there was no success.
"$SG" run -n -b redis://127.0.0.1:1 --metrics "$PROM" jo -- true 2>/dev/null
same 'another key' 'syncguard_run_success_timestamp_seconds{key="jo"} 0.000' "$(kept)"
check 'another key: well formed' well_formed
for value in 1e9 -1.000 9999999999999999.000 1.0000 x; do
    echo "syncguard_run_success_timestamp_seconds{key=\"job\"} $value" >"$PROM"
    "$SG" run -n -b redis://127.0.0.1:1 --metrics "$PROM" job -- true 2>/dev/null
    same "not ours: $value" 0.000 "$(value success_timestamp_seconds)"
done
# A file of the first version, with one set of figures: those of the last attempt, with or without the lock.
first_version() {
    local name value
    for name in acquired wait_seconds hold_seconds lost exit_code completion_timestamp_seconds; do
        value=$1
        shift
        printf '# HELP syncguard_run_%s x\n# TYPE syncguard_run_%s gauge\nsyncguard_run_%s{key="job"} %s\n' \
            $name $name $name "$value"
    done >"$PROM"
}
skip() {
    "$SG" run -n -b redis://127.0.0.1:1 --metrics "$PROM" job -- true 2>/dev/null
    check 'first version: well formed' well_formed
}
first_version 1.000 0.000 2.000 0.000 0.000 1700000000.123
skip
same 'first version: a success' "1700000000.123 1700000000.123" \
    "$(value completion_timestamp_seconds) $(value success_timestamp_seconds)"
first_version 1.000 0.000 2.000 0.000 3.000 1700000000.123
skip
same 'first version: a failure' "1700000000.123 0.000" \
    "$(value completion_timestamp_seconds) $(value success_timestamp_seconds)"
first_version 1.000 0.000 2.000 1.000 0.000 1700000000.123
skip
same 'first version: a loss' 0.000 "$(value success_timestamp_seconds)"
first_version 0.000 0.000 0.000 0.000 0.000 1700000000.123
skip
same 'first version: an attempt is no run' 'syncguard_run_success_timestamp_seconds{key="job"} 0.000' "$(kept)"
first_version 1.000 0.000 2.000 0.000 0.000 1700000000.123
"$SG" run --metrics "$PROM" job -- false
same 'first version: a success before a failure' "1.000 1700000000.123" \
    "$(value exit_code) $(value success_timestamp_seconds)"

# The lock is taken away while the program runs.
"$SG" run --ttl 3s --metrics "$PROM" job -- sh -c "
    '$SG' release \"\$SYNCGUARD_LOCK_ID\"; exec sleep 30" 2>"$WORK/err"
same 'a lost lock' 76 $?
same 'a lost lock' "76.000 1.000 1.000" "$(value exit_code) $(value lost) $(value acquired)"
# ... and the loss is noticed only at the release.
"$SG" run --metrics "$PROM" job -- sh -c "'$SG' release \"\$SYNCGUARD_LOCK_ID\"" 2>"$WORK/err"
same 'lost at the end' "76.000 1.000" "$(value exit_code) $(value lost)"
check 'well formed' well_formed
check 'no temporary file' alone

# A wrong command line does not count as a run.
rm "$PROM"
"$SG" run --metrics "$PROM" --ttl 0 job -- true 2>/dev/null
same 'usage' 64 $?
"$SG" run --metrics "$PROM" "$(printf 'k%.0s' {1..600})" -- true 2>/dev/null
same 'usage' 64 $?
"$SG" run --metrics "$PROM" --slots 2 "$(printf 'k%.0s' {1..508})" -- true 2>/dev/null
same 'usage' 64 $?
"$SG" run --metrics "$PROM" --owner "$(printf 'o%.0s' {1..200})" job -- true 2>/dev/null
same 'usage' 64 $?
check 'not written' [ ! -e "$PROM" ]
# A run counts as an attempt if its store cannot be used because of the URL or the file, or if an outer run forbids it.
mkfifo pipe
attempts() {
    local text=$1
    shift
    rm -f "$PROM"
    "$@" 2>/dev/null
    same "$text: an attempt" "64 64.000 0.000" "$? $(value attempt_exit_code) $(value acquired)"
}
attempts 'a refused file' "$SG" run -n -b "sqlite:$WORK/pipe" --metrics "$PROM" job -- true
attempts 'no such option' "$SG" run -n -b "sqlite:$WORK/x.db?colour=red" --metrics "$PROM" job -- true
attempts 'no such scheme' "$SG" run -n -b mysql://x --metrics "$PROM" job -- true
attempts 'no file with the URL' "$SG" run -n -b "@$WORK/none" --metrics "$PROM" job -- true
attempts 'nested' "$SG" run job -- "$SG" run -n --metrics "$PROM" job -- true
"$SG" acquire -q --ttl 1m job >id
attempts 'the code of -E' "$SG" run -n -E 64 --metrics "$PROM" job -- true
"$SG" release "$(cat id)"

# A file that cannot be written leads to a message; the exit code is the program's.
warns() {
    local text=$1 file=$2
    "$SG" run --metrics "$file" job -- sh -c 'exit 5' 2>"$WORK/err"
    same "$text: exit code" 5 $?
    same "$text: one line" 1 "$(wc -l <"$WORK/err")"
    check "$text: message" grep -q 'metrics' "$WORK/err"
}
warns 'no such folder' "$WORK/none/x.prom"
check 'the message says why' grep -q 'No such file or directory' "$WORK/err"
warns 'a folder' "$WORK/folder"
warns 'a device' /dev/null
check 'the device is left alone' [ -c /dev/null ]
warns 'an empty name' ''
echo old >"$WORK/target"
ln -s "$WORK/target" "$WORK/link"
warns 'a link' "$WORK/link"
check 'the link is left alone' [ -L "$WORK/link" ]
same 'its target, too' old "$(cat "$WORK/target")"
ln -s "$WORK/nowhere" "$WORK/dangling"
warns 'a dangling link' "$WORK/dangling"
check 'nothing is created through a link' [ ! -e "$WORK/nowhere" ]

# In the folder where it is.
cd folder || exit 1
"$SG" run --metrics syncguard.prom job -- true
check 'a name without a folder' well_formed
# Readers never see half a file.
for _ in 1 2 3; do
    "$SG" run --metrics "$PROM" job -- true &
done
wait
check 'several at once' well_formed
check 'no temporary file' alone
# A skipped run that ends together with a successful one does not put the old figures back.
for round in 1 2 3 4 5 6 7 8; do
    "$SG" run --metrics "$PROM" job -- sh -c "exit $round"
    "$SG" run --metrics "$PROM" job -- true &
    for _ in 1 2 3 4; do
        "$SG" run -n -b redis://127.0.0.1:1 --metrics "$PROM" job -- true 2>/dev/null &
    done
    wait
    same "round $round: the success is kept" 0.000 "$(value exit_code)"
done
# The run reads the file only when it has locked the folder. On a busy machine the wait may fail: retried.
kept_while_locked() {
    "$SG" run --metrics "$PROM" job -- sh -c 'exit 5'
    sed '/^syncguard_run_exit_code/s/5.000/0.000/' "$PROM" >"$WORK/finished"
    exec 9<"$WORK/folder"
    flock 9
    "$SG" run -n -b redis://127.0.0.1:1 --metrics "$PROM" job -- true 2>/dev/null 9<&- &
    sleep 0.5
    mv "$WORK/finished" "$PROM"
    exec 9<&-
    wait
    [ "$(value acquired) $(value exit_code)" = "0.000 0.000" ]
}
check 'the end of another run is kept' until_true 5 kept_while_locked
# A folder that another process keeps locked delays a run, but does not stop it.
exec 9<"$WORK/folder"
flock 9
"$SG" run --metrics "$PROM" job -- sh -c 'exit 3' 9<&-
same 'locked folder' "3 3.000" "$? $(value exit_code)"
exec 9<&-
finish
