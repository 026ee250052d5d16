#!/bin/bash
# `make install` from two copies of the sources: it builds no tests, takes spaces in every folder, gives the same bytes
# in both, and leaves out the stores that BACKENDS does not name.
#
#     make_install.sh SOURCES
set -eu
top=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The variables of a make that runs this test must not reach the one that is tested. A compiler cache would compare a
# build with itself.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES BACKENDS DESTDIR PREFIX CMAKE_C_COMPILER_LAUNCHER
export CCACHE_DISABLE=1
failed=0

check() { # TEXT CONDITION...
    local text=$1
    shift
    "$@" && return
    echo "FAILED: $text"
    failed=1
}

# make_in FOLDER ARGUMENT...: shows its output only if it fails
make_in() {
    make -C "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
}


one=$work/one two="$work/a longer name/with spaces"
for folder in "$one" "$two"; do
    mkdir -p "$folder"
    "$top/scripts/copy-sources.sh" "$top" "$folder"
done
make_in "$one" install PREFIX="/opt/our tools" DESTDIR="$work/d1"
make_in "$two" install PREFIX="/opt/our tools" DESTDIR="$work/d 2" BUILD="out of tree"
check "no test is built" [ -z "$(find "$one/build" "$two/out of tree" -type f -name 'core_*')" ]
check "both folders give the same files" diff -r --no-dereference "$work/d1" "$work/d 2"
check "no file names the folder of its build" [ -z "$(grep -rlF "$work" "$work/d1")" ]
tree="$work/d 2/opt/our tools"
check "the command runs from a folder with spaces" \
    [ "$(SYNCGUARD_URL="sqlite:$work/locks.db" "$tree/bin/syncguard" run key -- echo ran)" = ran ]
echo "$(find "$work/d1" -type f | wc -l) files are the same"

# The choice of stores stays in the build folder until another is made.
make_in "$one" install DESTDIR="$work/d3" BACKENDS="sqlite postgres"
make_in "$one" install DESTDIR="$work/d4"
for tree in "$work/d3/usr/local" "$work/d4/usr/local"; do
    for name in libsyncguard-sqlite.so.0 libsyncguard-postgres.a syncguard-postgres.pc sqlite.h; do
        check "$name is installed" [ -n "$(find "$tree" -name "$name")" ]
    done
    check "redis and firestore are left out" \
        [ -z "$(find "$tree" -name '*redis*' -o -name '*firestore*')" ]
    said=$("$tree/bin/syncguard" status -b redis://127.0.0.1 key 2>&1 || true)
    check "the command says so: $said" [ "${said/not installed/}" != "$said" ]
done
said=$(make -C "$one" BACKENDS="sqlite rediss" 2>&1 || true)
check "unknown stores are refused: $said" [ "${said/unknown: rediss/}" != "$said" ]

# Both forms of a library consist of the same objects, but for the source that loads modules.
twice=$(find "$one/build/src" -name '*.c.o' | sed 's#CMakeFiles/[^/]*[.]dir/##' | sort | uniq -d)
check "only module.c is compiled twice: $twice" [ "$twice" = "$one/build/src/core/module.c.o" ]

# Folders that existed before the install, or contain other files, stay.
make_in "$one" uninstall DESTDIR="$work/d4"
check "uninstall removes everything" [ -z "$(ls -A "$work/d4")" ]
mkdir -p "$work/d3/usr/local/share/somebody-else"
make_in "$one" install DESTDIR="$work/d3"
make_in "$one" uninstall DESTDIR="$work/d3"
check "folders of others stay" [ "$(cd "$work/d3" && find . -mindepth 1 | sort | tr '\n' ' ')" = \
    "./usr ./usr/local ./usr/local/share ./usr/local/share/somebody-else " ]
mkdir -p "$work/d6/usr/local/lib" "$work/d6/usr/local/share/man/man1"
make_in "$one" install DESTDIR="$work/d6"
make_in "$one" install DESTDIR="$work/d6"
make_in "$one" uninstall DESTDIR="$work/d6"
check "folders that existed before stay" [ "$(cd "$work/d6" && find . -mindepth 1 | sort | tr '\n' ' ')" = \
    "./usr ./usr/local ./usr/local/lib ./usr/local/share ./usr/local/share/man ./usr/local/share/man/man1 " ]
exit $failed
