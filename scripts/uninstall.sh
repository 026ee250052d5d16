#!/bin/sh
# Removes the files that the last `make install` recorded, and the folders that install.sh created, once they are empty.
# DESTDIR is honoured. Stored locks and fence counters are data, not part of the installation: they stay.
set -eu

build=${1:-build}
manifest=$build/install_manifest.txt
created=$build/install_folders.txt
if [ ! -f "$manifest" ]; then
    echo "uninstall: no $manifest; nothing was installed from this tree" >&2
    exit 1
fi
[ -f "$created" ] || : >"$created"

# The manifest's last line has no newline; `|| [ -n ... ]` keeps it.
while IFS= read -r file || [ -n "$file" ]; do
    target=${DESTDIR:-}$file
    if [ -e "$target" ] || [ -L "$target" ]; then
        rm -f -- "$target"
        echo "removed $target"
    fi
    folder=$(dirname -- "$target")
    while grep -qxF -e "$folder" "$created"; do
        if [ -d "$folder" ]; then
            rmdir -- "$folder" 2>/dev/null || break
            echo "removed $folder"
        fi
        folder=$(dirname -- "$folder")
    done
done <"$manifest"

# A removed folder leaves the list: if something else creates it again, it is not ours to
# remove.
while IFS= read -r folder; do
    [ ! -d "$folder" ] || printf '%s\n' "$folder"
done <"$created" >"$created.new"
mv -- "$created.new" "$created"
