#!/bin/bash
# acquire, release, extend, status, list, setup, doctor, version; JSON; the output of each.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

exits "acquire" 0 acquire --ttl 60s secret-key
check "lock id line" grep -Eqx 'lockId: [A-Za-z0-9_-]{22}' out
check "fence line" grep -Eqx 'fence: 000000000000001' out
check "expiry line" grep -Eqx 'expiresAtMs: [0-9]{13}' out
id=$(sed -n 's/^lockId: //p' out)
exits "held" 1 acquire -n secret-key
exits "held, -w" 75 acquire -w 200ms secret-key
exits "held, -E" 5 acquire -n -E 5 secret-key

exits "status" 0 status secret-key
check "held" contains "$out" "state: held"
check "no lock id without --raw" lacks "$out" "$id"
check "key" grep -qx 'key: secret-key' out
check "owner" grep -Eqx 'owner: tester@.+:[0-9]+' out
zone='[-+][0-9]{4}'
check "held for, with the zone" grep -Eqx "held for: [0-9a-z.]+ \(since [-0-9]+ [:0-9]+ $zone\)" out
check "expires in" grep -Eqx "expires in: [0-9a-z.]+ \(at [-0-9]+ [:0-9]+ $zone, unless renewed\)" out
exits "status --id" 0 status --id "$id"
check "the same key" grep -qx 'key: secret-key' out
check "the id is not repeated" lacks "$out" "$id"
exits "status --raw" 0 status --raw secret-key
check "lock id with --raw" grep -qx "lockId: $id" out

exits "status --json" 0 status --json secret-key
same "held" true "$(json held)"
same "fence" 000000000000001 "$(json fence)"
key_hash=$(json keyHash)
check "hash of 24 digits" [ ${#key_hash} = 24 ]
expires=$(json expiresAtMs)
same "the lease" 60000 $((expires - $(json acquiredAtMs)))
check "no lock id" lacks "$out" "$id"
exits "status --raw --json by id" 0 status --raw --json --id "$id"
same "key" secret-key "$(json key)"
same "lock id" "$id" "$(json lockId)"

exits "list" 0 list
same "a heading" "KEY OWNER HELD FOR EXPIRES IN FENCE" "$(sed -n '1s/  */ /gp' out)"
check "a row" grep -Eq '^secret-key  tester@.+:[0-9]+ +[0-9a-z.]+ +[0-9a-z.]+ +000000000000001$' out
check "list has no id" lacks "$out" "$id"
exits "list --raw" 0 list --raw
check "list --raw has the id" grep -Eq "^secret-key .* 000000000000001  $id\$" out
check "and its heading" grep -Eq 'FENCE +LOCK ID$' out
exits "list --json" 0 list --json
same "same hash" "$key_hash" "$(json keyHash)"
same "key" secret-key "$(json key)"
check "owner" contains "$(json owner)" tester@
check "no id" lacks "$out" "$id"

# Patterns match whole keys; * also stands for a slash. The rows are sorted.
for key in deploy/web/2 deploy/web/1 deploy/ä other; do
    exits "acquire $key" 0 acquire "$key"
done
keys() { sed '1d; s/ .*//' out | tr '\n' ' '; }
exits "a pattern" 0 list 'deploy/*'
same "its keys, sorted" 'deploy/web/1 deploy/web/2 deploy/ä ' "$(keys)"
exits "one character" 0 list 'deploy/?'
same "is not a byte" 'deploy/ä ' "$(keys)"
exits "the whole key" 0 list deploy
same "no part of a key" "" "$out"
exits "a pattern with --json" 0 list --json other
same "one line" other "$(json key)"
for key in deploy/web/2 deploy/web/1 deploy/ä other; do
    run_sg release --key "$key" --force
done

# The columns are those of a terminal: some characters take two, combining marks none.
wide=(abc $'x\xcc\x81y' x🚀 日本)
for key in "${wide[@]}"; do
    exits "acquire $key" 0 acquire --owner 所有者 "$key"
done
exits "wide characters" 0 list
same "the columns" $'KEY OWNER\nabc 所有者\nx\xcc\x81y 所有者\nx🚀 所有者\n日本 所有者' \
    "$(sed '/secret-key/d; s/  */ /g' out | cut -d ' ' -f 1,2)"
for row in 'KEY         OWNER ' 'abc         所有者 ' $'x\xcc\x81y          所有者 ' 'x🚀         所有者 ' '日本        所有者 '; do
    check "where they begin: $row" grep -q "^$row" out
done
for key in "${wide[@]}"; do
    run_sg release --key "$key" --force
done

sleep 0.05
exits "extend" 0 extend --json --ttl 90s "$id"
check "moves the expiry" [ "$(json expiresAtMs)" -gt $((expires + 29000)) ]
exits "extend, plain" 0 extend "$id"
check "one line" grep -Eqx 'expiresAtMs: [0-9]{13}' out
exits "release" 0 release "$id"
same "release is quiet" "" "$out$err"
exits "release again" 1 release "$id"
exits "extend what is gone" 1 extend "$id"
exits "status of what is gone" 1 status secret-key
check "free" contains "$out" "state: free"
exits "status of an id that is gone" 1 status --id "$id"
exits "status --json, free" 1 status --json secret-key
same "not held" false "$(json held)"
exits "empty list" 0 list --json
same "empty list" "" "$out"
# One id in 64 begins like an option.
exits "an id with a minus sign" 1 release -aaaaaaaaaaaaaaaaaaaaa
exits "an id with a minus sign, options behind" 1 extend -aaaaaaaaaaaaaaaaaaaaa --ttl 5s

# Keys and owners that would control a terminal or break a parser.
nasty=$'a"b\\c\n\x1b[31m\xc2\x9b\xe2\x82\xac\x7f/*'
exits "nasty key" 0 acquire --json --owner $'evil\x1b]0;x\x07"' "$nasty"
same "round trip through JSON" "$nasty" "$(json key)"
exits "nasty list" 0 list --raw
same "a heading and one line" 2 "$(wc -l <out)"
same "no control characters but newline" 0 "$(tr -d '\n' <out | LC_ALL=C grep -c '[[:cntrl:]]')"
check "no C1 control" lacks "$out" $'\xc2\x9b'
exits "nasty JSON" 0 list --raw --json
same "key" "$nasty" "$(json key)"
same "owner" $'evil\x1b]0;x\x07"' "$(json owner)"
id=$(json lockId)
exits "status" 0 status --raw -- "$nasty"
same "no escape" 0 "$(grep -c $'\x1b' out)"
exits "release" 0 release -- "$id"
# Text that runs backwards, a line separator, and bytes that are not UTF-8 (from another program).
exits "a key that turns direction" 0 acquire --json $'a\xe2\x80\xaeb\xe2\x80\xa8c'
id=$(json lockId)
check "a foreign owner" python3 -c '
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute("update syncguard_locks set owner = cast(? as text)", (b"x\x9b31m\xff",)).rowcount == 1
db.commit()' "$WORK/locks.db"
exits "list" 0 list --raw
check "direction" contains "$out" 'a\xe2\x80\xaeb\xe2\x80\xa8c'
check "bytes" contains "$out" 'x\x9b31m\xff'
exits "status" 0 status --raw --id "$id"
check "bytes" contains "$out" 'owner: x\x9b31m\xff'
# JSON does not control a terminal either, and a parser still gets the same text.
exits "list --json parses" 0 list --raw --json
same "no control or format character" 0 "$(LC_ALL=C grep -c $'\xc2\x9b\\|\xe2\x80\xae\\|\xe2\x80\xa8' out)"
check "escaped" contains "$out" '\u202eb\u2028'
same "key" $'a\xe2\x80\xaeb\xe2\x80\xa8c' "$(json key)"
same "owner" $'x\xef\xbf\xbd31m\xef\xbf\xbd' "$(json owner)"
exits "release" 0 release -- "$id"
# All controls and format characters: C1, soft hyphen, zero width, byte order mark, tags.
hidden=$'k\xc2\x9b\xc2\xad\xd8\x9c\xe2\x80\x8b\xe2\x81\xa0\xef\xbb\xbf\xf3\xa0\x80\xa1\xe2\x82\xac'
exits "a key with hidden characters" 0 acquire --json "$hidden"
id=$(json lockId)
same "the same key" "$hidden" "$(json key)"
for arguments in "list --raw --json" "list --raw" "status --raw --id $id" "status --json --raw --id $id"; do
    # shellcheck disable=SC2086 # words
    exits "$arguments" 0 $arguments
    same "$arguments: nothing hidden" 0 "$(LC_ALL=C grep -c \
        $'\xc2\x9b\\|\xc2\xad\\|\xd8\x9c\\|\xe2\x80\x8b\\|\xe2\x81\xa0\\|\xef\xbb\xbf\\|\xf3\xa0\x80\xa1' out)"
    check "$arguments: the rest as it is" grep -q $'\xe2\x82\xac' out
done
same "through JSON" "$hidden" "$(json key)"
exits "release" 0 release -- "$id"
# Messages are escaped too.
for arguments in $'-\x1b' $'--no\x1bpe' $'-b\nsqlite:' "-bsqlite:/dev/null/no%0Asuch%1B[31m/x.db"; do
    run_sg list "$arguments"
    check "a bad one: $code" [ "$code" -ge 64 ]
    check "one line" one_line "$err"
    same "no escape in messages" 0 "$(LC_ALL=C grep -c $'\x1b' err)"
done

# Output that cannot be written is a failure; a lock whose id could not be printed is released.
code=0
"$SG" acquire unknown >/dev/full 2>/dev/null || code=$?
same "output full" 70 $code
exits "released again" 1 status unknown
code=0
"$SG" version >/dev/full 2>/dev/null || code=$?
same "version to a full disk" 70 $code

exits "version" 0 version
check "version" grep -Eqx 'syncguard [0-9]+\.[0-9]+\.[0-9]+' out
exits "version --json" 0 version --json
check "a version" [ -n "$(json version)" ]
exits "setup" 0 setup
same "setup says why it did nothing" "$SYNCGUARD_URL: nothing to do, this store needs no setup" "$out"
exits "setup --print" 0 setup --print
same "no statements" "" "$out"
run_sg doctor
check "doctor: exit code $code" [ "$code" -le 2 ]
run_sg doctor --json
check "doctor --json" python3 -c '
import json, sys
for line in open("out"):
    finding = json.loads(line)
    assert finding["severity"] in ("fine", "warn", "block") and finding["topic"] and finding["text"]'

# bench: only the form of its output is checked, since a busy machine may miss a bar (exit 1).
run_sg bench -b memory: --json --plot plot.svg pair
check "bench: exit code $code" [ "$code" -le 1 ]
check "bench --json" python3 -c '
import json
figures = [json.loads(line) for line in open("out")]
assert [f["figure"] for f in figures] == ["pair, p50", "pair, p99"]
assert all(f["store"] == "memory" and f["measured"] > 0 and f["repetitions"] >= 5 for f in figures)
assert isinstance(figures[0]["holds"], bool)'
check "a plot that parses" python3 -c '
import xml.etree.ElementTree as tree
assert tree.parse("plot.svg").getroot().tag.endswith("svg")'
exits "bench: unknown group" 64 bench -b memory: nonsense
exits "bench: store cannot be reached" 69 bench -b redis://127.0.0.1:1 pair

# The end of a fence counter: the last one is granted, then nothing, and no lock is left behind.
exits "a counter" 0 run last -- true
check "counter set" python3 -c '
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute("update syncguard_fence_counters set fence = 899999999999999").rowcount > 0
db.commit()' "$WORK/locks.db"
# shellcheck disable=SC2016 # the child expands it
exits "the last fence" 0 run last -- sh -c 'echo $SYNCGUARD_FENCE'
same "the last fence" 900000000000000 "$out"
exits "no fence is left" 70 run -n last -- true
check "one line" one_line "$err"
exits "no lock is left" 1 status last

# Arguments that only the library checks: InvalidArgument is 64, too.
exits "a key that is too long" 64 status "$(printf 'x%.0s' {1..600})"
exits "a malformed lock id" 64 release not/an/id
exits "an unknown option of the URL" 64 status -b 'memory:?nonsense=1' k
finish
