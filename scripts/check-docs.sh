#!/bin/sh
# Checks the documents: man pages are well formed, links have a target, figures are the measured ones,
# every command has a page, every public name has a comment.
#
#     check-docs.sh BUILD
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
faults=0
complain() {
    echo "$*" >&2
    faults=$((faults + 1))
}

# Man pages.
for page in docs/man/*.[1-8]; do
    [ -e "$page" ] || continue
    # References between our own pages cannot be resolved before they are installed.
    lint=$(mandoc -T lint -W warning "$page" 2>&1 | grep -v 'referenced manual not found' || true)
    [ -z "$lint" ] || complain "$lint"
done
if [ -x "$build/syncguard" ] && [ -d docs/man ]; then
    for source in src/cli/cmd_*.c; do
        [ -e "$source" ] || continue
        name=$(basename "$source" .c)
        name=${name#cmd_}
        [ -e "docs/man/syncguard-$name.1" ] || complain "no man page docs/man/syncguard-$name.1"
        "$build/syncguard" "$name" --help >/dev/null || complain "syncguard $name --help fails"
    done
fi

# Links, headings, and the way from the README to each page. The test docs_blocks runs the examples.
python3 tests/docs/links.py . || faults=$((faults + 1))
python3 scripts/figures.py --check || faults=$((faults + 1))

# Every public name has a comment.
scripts/api-docs.sh "$build/api" >/dev/null || faults=$((faults + 1))

[ "$faults" = 0 ] || { echo "check-docs: $faults faults" >&2; exit 1; }
