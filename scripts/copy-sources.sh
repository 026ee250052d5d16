#!/bin/sh
# Copies the sources, and nothing that was built, into a folder that exists.
#
#     copy-sources.sh FROM TO
#
# With git: the files that it tracks, as they are now, and new ones that it does not ignore.
set -eu
from=$1 to=$2
list=$(mktemp)
trap 'rm -f "$list"' EXIT
if git -C "$from" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -C "$from" ls-files -z --cached --others --exclude-standard --deduplicate >"$list"
else
    (cd "$from" && find . \( -path ./.git -o -path './build*' -o -name '*.deb' \) -prune -o ! -type d -print0) >"$list"
fi
# A file that was removed and is still in the index is not copied.
tar -C "$from" --null --ignore-failed-read -T "$list" -cf - | tar -C "$to" -xf -
