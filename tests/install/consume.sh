#!/bin/sh
# Installs into a folder of its own, then builds and runs a program against it the way a user would.
#
#     consume.sh WAY BUILD BACKEND...
# WAY: pkgconfig-shared, pkgconfig-static, cmake-shared, cmake-static, uninstall
set -eu
way=$1 build=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cc=${CC:-cc}
cmake=${CMAKE:-cmake}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

quiet() { # COMMAND...: shows what it said only if it failed
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
}

# A prefix other than the configured one, and moved afterwards: the tree must not know where it
# was meant to go. Naming the component keeps the manifest of a real install.
quiet "$cmake" --install "$build" --prefix "$work/first" --component Unspecified
mv "$work/first" "$work/tree"
libdir=$(dirname "$(find "$work/tree" -name libsyncguard.so)")
export PKG_CONFIG_PATH="$libdir/pkgconfig"

sqlite=
for backend in "$@"; do
    [ "$backend" = sqlite ] && sqlite=1
    [ -e "$libdir/libsyncguard-$backend.so" ] || { echo "no libsyncguard-$backend.so"; exit 1; }
    pkg-config --exists --print-errors "syncguard-$backend"
done
[ -n "$sqlite" ] || { echo "the sqlite backend was not built"; exit 1; }

use() { # PROGRAM
    "$1" "memory:" && "$1" "sqlite:$work/locks.db"
}

case $way in
pkgconfig-shared)
    # The program links the core alone: the module is found beside the library.
    # shellcheck disable=SC2046 # several options
    "$cc" -std=c99 -Wall -Wextra -Werror "$here/consumer/consumer.c" -o "$work/program" \
        $(pkg-config --cflags --libs syncguard) -Wl,-rpath,"$libdir"
    use "$work/program"
    for backend in "$@"; do
        # shellcheck disable=SC2046
        "$cc" "$here/consumer/consumer.c" -o "$work/program-$backend" \
            $(pkg-config --cflags --libs "syncguard-$backend") -Wl,-rpath,"$libdir"
    done
    if [ -x "$work/tree/bin/syncguard" ]; then
        env -u LD_LIBRARY_PATH SYNCGUARD_URL="sqlite:$work/command.db" \
            "$work/tree/bin/syncguard" run -n key -- true
    fi
    ;;
pkgconfig-static)
    # Without the shared forms the linker takes the archives.
    rm -f "$libdir"/libsyncguard*.so*
    # shellcheck disable=SC2046
    "$cc" -std=c99 -Wall -Wextra -Werror -DUSE_STATIC "$here/consumer/consumer.c" \
        -o "$work/program" $(pkg-config --static --cflags --libs syncguard-sqlite)
    use "$work/program"
    # Client libraries stay shared here: the whole static closure of libpq or libcurl asks for
    # archives that the distributions do not ship.
    for backend in "$@"; do
        below=$(pkg-config --print-requires-private "syncguard-$backend" syncguard | sed 's/ .*//')
        # shellcheck disable=SC2046,SC2086
        "$cc" -DUSE_STATIC -DMODULE="syncguard_module_$backend" "$here/consumer/consumer.c" \
            -o "$work/program-$backend" $(pkg-config --cflags --libs "syncguard-$backend") \
            $(pkg-config --libs $below) \
            $(sed -n 's/^Libs.private: *//p' "$libdir"/pkgconfig/syncguard*.pc)
        "$work/program-$backend" "memory:"
    done
    ;;
cmake-shared | cmake-static)
    quiet "$cmake" -S "$here/consumer" -B "$work/build" -DFORM="${way#cmake-}" \
        -DBACKENDS="$(echo "$*" | tr ' ' ';')" -DCMAKE_PREFIX_PATH="$work/tree" \
        -DCMAKE_C_COMPILER="$cc"
    quiet "$cmake" --build "$work/build"
    [ "$way" = cmake-shared ] || rm -f "$libdir"/libsyncguard*.so*
    use "$work/build/program"
    ;;
uninstall)
    # What was installed is what is removed, below DESTDIR too.
    mkdir "$work/manifest"
    find "$work/tree" ! -type d | sed "s#^$work/tree#/opt/syncguard#" >"$work/manifest/install_manifest.txt"
    mkdir -p "$work/dest/opt"
    mv "$work/tree" "$work/dest/opt/syncguard"
    touch "$work/dest/opt/syncguard/lib-of-somebody-else"
    DESTDIR=$work/dest "$top/scripts/uninstall.sh" "$work/manifest" >/dev/null
    left=$(find "$work/dest" ! -type d)
    [ "$left" = "$work/dest/opt/syncguard/lib-of-somebody-else" ] || { echo "left: $left"; exit 1; }
    ;;
esac
