#!/bin/bash
# --help and the man pages list the same options; the pages are well formed.
#
#     pages.sh COMMAND FOLDER
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
pages=$2 # absolute: the work is done in a folder of its own

commands=$("$SG" --help | sed -n 's/^  \([a-z]*\)  *.*/\1/p')
check "there are commands" [ -n "$commands" ]
for command in $commands; do
    page=$pages/syncguard-$command.1
    check "page of $command" [ -f "$page" ] || continue
    "$SG" "$command" --help | grep -oE '^  +(-[a-zA-Z], )?--[a-z-]+' | tr -d ' ' | sort >in-help
    sed -n 's/^\.It \(Fl .*\)/\1/p' "$page" | sed -E 's/ (Ar|Cm) .*//; s/Fl -/--/g; s/Fl /-/g' |
        tr -d ' ' | sort >in-page
    check "options of $command: $(diff in-help in-page | tr '\n' ' ')" cmp -s in-help in-page
    check "syncguard.1 mentions $command" grep -q "Xr syncguard-$command 1" "$pages/syncguard.1"
    name=$(sed -n 's/^\.Nd //p' "$page")
    check "$command has a name line" [ -n "$name" ]
done
for page in "$pages"/*.1; do
    # Pages that are not installed cannot be found by their references.
    lint=$(mandoc -Tlint "$page" 2>&1 | grep -v -e 'referenced manual not found' -e 'outdated mandoc.db')
    same "$(basename "$page") is well formed" "" "$lint"
    while read -r other; do
        check "$(basename "$page") refers to $other, which exists" [ -f "$pages/$other.1" ]
    done < <(sed -n 's/^\.Xr \(syncguard[a-z-]*\) 1.*/\1/p' "$page")
    command=$(basename "$page" .1)
    command=${command#syncguard}
    [ -z "$command" ] || check "$page is of a command" contains " $commands " "${command#-}"
done
# Every exit code is explained.
for code in 0 1 64 69 70 71 75 76 77 126 127 128+n; do
    check "syncguard.1 explains exit code $code" grep -qx "\.It $code" "$pages/syncguard.1"
done
finish
