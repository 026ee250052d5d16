#!/bin/sh
# Removes the files that the last `make install` recorded. DESTDIR is honoured.
# Stored locks and fence counters are data, not part of the installation: they stay.
set -eu

manifest=${1:-build}/install_manifest.txt
if [ ! -f "$manifest" ]; then
    echo "uninstall: no $manifest; nothing was installed from this tree" >&2
    exit 1
fi
# The manifest's last line has no newline; `|| [ -n ... ]` keeps it.
while IFS= read -r file || [ -n "$file" ]; do
    target=${DESTDIR:-}$file
    if [ -e "$target" ] || [ -L "$target" ]; then
        rm -f -- "$target"
        echo "removed $target"
        # Folders of our own go once they are empty; shared ones are never empty of ours alone.
        folder=$(dirname -- "$target")
        case $folder in
        */syncguard | */syncguard/sys | */cmake/SyncGuard)
            rmdir --ignore-fail-on-non-empty -- "$folder" ;;
        esac
    fi
done <"$manifest"
