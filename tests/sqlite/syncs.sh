#!/bin/sh
# Counts the syncs of the SQLite backend with strace, and lets them fail.
#
#     syncs.sh WORKER
set -eu
worker=$1
folder=$(mktemp -d "${TMPDIR:-/tmp}/syncguard-syncs.XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
failed=0

say() {
    echo "$1"
    case $1 in FAILED*) failed=1 ;; esac
}

if ! strace -f -o "$folder/probe" -e trace=fdatasync true 2>"$folder/why"; then
    echo "FAILED: strace cannot trace here, so syncs cannot be counted: $(head -n 1 "$folder/why")"
    exit 1
fi

# syncs DURABILITY PAIRS EXTENDS: how many syncs a process makes with so many pairs on a new file.
syncs() {
    rm -f "$folder/$1.db"*
    strace -f -o "$folder/trace" -e trace=fdatasync,fsync,sync,syncfs,sync_file_range,msync \
        "$worker" pairs "sqlite:$folder/$1.db?durability=$1" "$2" "$3" >"$folder/out" || {
        echo "FAILED: worker: $(cat "$folder/out")" >&2
        return 1
    }
    grep -c 'sync' "$folder/trace" || true
}

# The difference excludes the syncs of opening and closing. The pairs are so few that no checkpoint
# is due.
difference() {
    few=$(syncs "$1" 2 "$2")
    many=$(syncs "$1" 7 "$2")
    echo $((many - few))
}

for durability in full normal; do
    case $durability in full) expected=5 ;; *) expected=0 ;; esac
    for extends in 0 3; do
        got=$(difference $durability $extends)
        if [ "$got" = "$expected" ]; then
            say "ok: $durability, $extends extends: 5 pairs made $got syncs"
        else
            say "FAILED: $durability, $extends extends: 5 pairs made $got syncs, not $expected"
        fi
    done
done

# The sync must come after the commit's last write and before the worker reports the grant.
strace -f -o "$folder/trace" -e trace=fdatasync,pwrite64,write "$worker" grants \
    "sqlite:$folder/full.db" 1 >"$folder/out"
order=$(sed -n 's/.*\(pwrite64\|fdatasync\|write\)(\([0-9]*\).*/\1\2/p' "$folder/trace" |
    uniq | tr '\n' ' ')
case $order in
*pwrite64*fdatasync*write1*) say "ok: written, synced, reported" ;;
*) say "FAILED: order of writing and reporting: $order" ;;
esac

# A sync that fails: the grant is not reported and is taken back; the next one works, with a new fence.
base=$(grep -c fdatasync "$folder/trace" || true)
strace -f -o "$folder/trace" -e trace=fdatasync -e inject=fdatasync:error=EIO:when=$((base + 1)) \
    "$worker" grants "sqlite:$folder/full.db" 4 >"$folder/out" || true
if [ "$(grep -c '^granted' "$folder/out")" = 3 ] &&
    grep -q '^acquire: ServiceUnavailable EIO: .*full.db-wal' "$folder/out" &&
    grep '^granted' "$folder/out" | sort -c -u; then
    say "ok: a failed sync is reported as such, and nothing else is lost"
else
    say "FAILED: a failed sync ends in: $(cat "$folder/out")"
fi
[ $failed = 0 ]
