#!/bin/bash
# prune: removes expired records, and keeps live locks and counters.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

exits "there is no store yet" 0 prune -b "sqlite:$WORK/nothing.db"
check "and none is created" [ ! -e nothing.db ]
exits "a store without expired records" 0 acquire --ttl 5m --owner me live
for key in old/1 old/2; do
    exits "acquire" 0 acquire --ttl 1s --owner 'gone@host:1' $key
done
sleep 3.5
exits "--dry-run" 0 prune --dry-run
check "lists them" grep -Eqx 'old/1  \(of gone@host:1, expired [0-9.]+m?s ago\)' out
check "and their number" grep -qx '2 expired records would be removed' out
check "not the live one" lacks "$out" live
exits "--dry-run --json" 0 prune --dry-run --json
same "two objects" 2 "$(grep -c '"removed":false' out)"
exits "prune" 0 prune
same "they were still there" '2 expired records removed' "$out"
exits "again" 0 prune
same "nothing is left" '0 expired records removed' "$out"
check "the live lock stays" held live
same "counters stay" 3 "$(python3 -c '
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("select count(*) from syncguard_fence_counters").fetchone()[0])' "$WORK/locks.db")"
exits "the next fence" 0 acquire --json old/1
same "is higher" 000000000000002 "$(json fence)"
exits "memory: is refused" 64 prune -b memory:
finish
