#!/bin/sh
# Transactions of Google's own Node client and our commits exclude each other.
#
#     exclusion.sh HOLDER GRANTS          (beside the emulator, see tests/servers)
#
# The client comes from the npm registry into a temporary folder, unless CLIENT_FOLDER has it.
set -u
holder=$1 grants=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "SKIP firestore-node: node and npm are needed to run Google's own client"
    exit 77
fi
if [ -z "${CLIENT_FOLDER:-}" ]; then
    CLIENT_FOLDER=$work/client
    mkdir "$CLIENT_FOLDER"
    if ! (cd "$CLIENT_FOLDER" && npm install --silent --no-audit --no-fund --no-package-lock \
        --ignore-scripts @google-cloud/firestore) >"$work/npm.log" 2>&1; then
        tail -5 "$work/npm.log"
        echo "SKIP firestore-node: @google-cloud/firestore could not be installed from npm"
        exit 77
    fi
fi
export CLIENT_FOLDER

mkdir "$work/section"
"$holder" firestore://exclusion shared "$grants" "$work/section" >"$work/ours" &
ours=$!
timeout 100 node "$here/transactions.js" exclusion shared "$grants" "$work/section" >"$work/theirs" &
theirs=$!
status=0
wait $ours || status=1
wait $theirs || status=1

bad=$(cat "$work/ours" "$work/theirs" | grep -vc '^fence')
cat "$work/ours" "$work/theirs" | grep -v '^fence'
all=$(cat "$work/ours" "$work/theirs" | grep -c '^fence')
unique=$(cat "$work/ours" "$work/theirs" | grep '^fence' | sort -u | wc -l)
for side in ours theirs; do
    if ! sort -c -u "$work/$side"; then
        echo "fences of one side do not rise"
        status=1
    fi
done
echo "exclusion: $all grants, $unique fences, $bad faults"
[ "$status" -eq 0 ] && [ "$bad" -eq 0 ] && [ "$all" -eq "$unique" ] &&
    [ "$all" -eq $((2 * grants)) ]
