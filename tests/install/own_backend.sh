#!/bin/bash
# An author of a backend: builds examples/dir_backend outside of the tree against the installed product, as the guide
# says, runs the installed contract suite over it, and uses it with the installed command. Modules in the environment
# or the working directory are not loaded.
#
#     own_backend.sh BUILD
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
guide=$top/docs/guides/write-a-backend.md
cmake=${CMAKE:-cmake}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

check() { # TEXT CONDITION...
    local text=$1
    shift
    "$@" && return
    echo "FAILED: $text"
    failed=1
}

quiet() { # COMMAND...: shows its output only if it failed
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
}

# block NUMBER: that shell block of the guide, without sudo and with a folder of ours.
block() {
    awk -v number="$1" '
        $0 == "```" { inside = 0 }
        inside { print }
        $0 == "```sh" { found++; inside = found == number }' "$guide" |
        sed -e 's/^sudo //' -e "s#/var/tmp/locks#$work/locks#g"
}

quiet "$cmake" --install "$build" --prefix "$work/first" --component Unspecified
mv "$work/first" "$work/tree"
libdir=$(dirname "$(find "$work/tree" -name libsyncguard.so)")
export PKG_CONFIG_PATH="$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}" PATH="$work/tree/bin:$PATH" LD_RUN_PATH="$libdir"
unset LD_LIBRARY_PATH SYNCGUARD_URL
mkdir "$work/author" "$work/trap"
cp "$top/examples/dir_backend/dir.c" "$work/author"

# A module that leaves a trace when it is loaded, where a caller could put one.
cat >"$work/trap.c" <<END
#include <fcntl.h>
__attribute__((constructor)) static void loaded(void) { open("$work/loaded", O_CREAT | O_WRONLY, 0600); }
END
"${CC:-cc}" -shared -fPIC "$work/trap.c" -o "$work/trap/libsyncguard-dir.so"
cp "$work/trap/libsyncguard-dir.so" "$work/trap/libsyncguard-dir.so.0"
cp "$work/trap/libsyncguard-dir.so" "$work/trap/dir"
untouched() { # TEXT URL: the command refuses, names the available schemes, and loads nothing
    local code=0
    said=$(cd "$work/trap" && LD_LIBRARY_PATH=$work/trap:. SYNCGUARD_MODULES=$work/trap \
        syncguard run -n -b "$2" key -- echo ran 2>&1) || code=$?
    check "$1: exit code $code" [ "$code" = 64 ]
    check "$1: $said" [ "${said/is not known/}" != "$said" ]
    check "$1: known schemes: $said" [ "${said/sqlite:, redis:/}" != "$said" ]
    check "$1: nothing is loaded" [ ! -e "$work/loaded" ]
}
untouched "no such module" "dir:$work/locks"

# The module, built and put into its folder, and the command.
cd "$work/author"
block 1 >module.sh
check "the guide has the block of the module" grep -q moduledir module.sh
said=$(sh -e module.sh)
check "the command runs under a lock of the module: $said" [ "$said" = ran ]
check "the lock was in the folder" [ -n "$(find "$work/locks" -name 'c-*')" ]
syncguard acquire -b "dir:$work/locks" held >/dev/null
code=0
syncguard run -n -b "dir:$work/locks" held -- echo ran >"$work/out" 2>&1 || code=$?
check "a held key keeps others out: $code $(cat "$work/out")" [ "$code" != 0 ]

# The contract suite of the product.
block 2 >suite.sh
check "the guide has the block of the suite" grep -q contractdir suite.sh
sh -e suite.sh >suite.log 2>&1 || { cat suite.log; failed=1; }
summary=$(tail -n 1 suite.log)
echo "$summary"
case $summary in
"contract: "*" tests, 0 failed, "*) ;;
*) check "the whole suite passes" false ;;
esac

# Without the rights to install: a link to the library beside the module. An installed copy would be found first, so it
# is removed.
rm "$libdir/libsyncguard-dir.so"
block 3 >local.sh
check "the guide has the block without installation" grep -q LD_LIBRARY_PATH local.sh
check "the suite finds the module beside the link" quiet sh -e local.sh

# The CMake way.
quiet "$cmake" -S "$top/examples/dir_backend" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/tree" \
    -DCMAKE_C_COMPILER="${CC:-cc}" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror"
quiet "$cmake" --build "$work/cmake"
quiet "$cmake" --install "$work/cmake"
check "installed beside the library" [ -e "$libdir/libsyncguard-dir.so" ]
check "a group of the suite passes" quiet "$work/cmake/contract" --group fences "dir:$work/locks"
exit $failed
