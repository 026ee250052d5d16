#!/bin/sh
# Installs the build. DESTDIR is honoured. CMake lists the files in install_manifest.txt; the folders that did not
# exist before are added to install_folders.txt, so that uninstall.sh removes those and no others.
set -eu

build=${1:-build}
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT

# An installation into an empty folder shows which folders are needed.
DESTDIR=$staged cmake --install "$build" >/dev/null
find "$staged" -mindepth 1 -type d | while IFS= read -r folder; do
    folder=${DESTDIR:-}${folder#"$staged"}
    [ -d "$folder" ] || printf '%s\n' "$folder"
done >>"$build/install_folders.txt"
cmake --install "$build"
