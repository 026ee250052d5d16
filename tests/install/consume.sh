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

quiet() { # COMMAND...: shows its output only if it failed
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
}

# A prefix other than the configured one, and moved afterwards: the tree must not contain the path
# that it was configured for. Naming the component keeps the manifest of a real install.
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

# fenced KIND NUMBER: that block of README.md
fenced() {
    awk -v kind="$1" -v number="$2" '
        $0 == "```" { inside = 0 }
        inside { print }
        $0 == "```" kind { found++; inside = found == number }' "$top/README.md"
}

# The programs and the CMake lines of README.md. The second program is the first, which opens the
# store by the function of the second block.
mkdir "$work/readme"
fenced c 1 >"$work/readme/billing.c"
fenced cmake 1 >"$work/readme/recipe.cmake"
{
    fenced c 2
    sed 's/syncguard_open(NULL, NULL, &backend, &err)/open_store(\&backend, \&err)/' \
        "$work/readme/billing.c"
} >"$work/readme/embedded.c"
grep -q 'open_store(&backend' "$work/readme/embedded.c"
grep -q sqlite_static "$work/readme/recipe.cmake"

recipe() { # PROGRAM: takes the default store, which is a file of the user or of the variable
    SYNCGUARD_URL="sqlite:$work/readme.db" "$1" | grep -q 'acquired, fence'
}

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
    # shellcheck disable=SC2046
    "$cc" "$work/readme/billing.c" $(pkg-config --cflags --libs syncguard) -o "$work/billing"
    LD_LIBRARY_PATH=$libdir recipe "$work/billing"
    # The C++ program of README.md, and its line.
    fenced cpp 1 >"$work/readme/billing.cpp"
    line=$(sed -n 's/^c++ \(-std=c++17 billing\.cpp .*\) -o billing$/\1/p' "$top/README.md")
    [ -n "$line" ]
    (cd "$work/readme" && quiet eval "\"\${CXX:-c++}\" $line -o billing-cpp")
    LD_LIBRARY_PATH=$libdir recipe "$work/readme/billing-cpp"
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
    # The line of README.md as it stands, with the shared forms beside the archives.
    line=$(sed -n 's/^cc \(-static embedded\.c .*\)$/\1/p' "$top/README.md")
    [ -n "$line" ]
    (cd "$work/readme" && quiet eval "\"\$cc\" $line")
    recipe "$work/readme/embedded"
    # Without the shared forms the linker takes the archives.
    rm -f "$libdir"/libsyncguard*.so*
    # shellcheck disable=SC2046
    "$cc" -std=c99 -Wall -Wextra -Werror -DREGISTER=syncguard_sqlite_register \
        -DHEADER='<syncguard/sqlite.h>' "$here/consumer/consumer.c" \
        -o "$work/program" $(pkg-config --static --cflags --libs syncguard-sqlite)
    use "$work/program"
    # Client libraries stay shared here: the whole static closure of libpq or libcurl asks for
    # archives that the distributions do not ship.
    for backend in "$@"; do
        below=$(pkg-config --print-requires-private "syncguard-$backend" syncguard | sed 's/ .*//')
        # shellcheck disable=SC2046,SC2086
        "$cc" -DREGISTER="syncguard_${backend}_register" -DHEADER="<syncguard/$backend.h>" \
            "$here/consumer/consumer.c" \
            -o "$work/program-$backend" $(pkg-config --cflags --libs "syncguard-$backend") \
            $(pkg-config --libs $below) \
            $(sed -n 's/^Libs.private: *//p' "$libdir"/pkgconfig/syncguard*.pc)
        "$work/program-$backend" "memory:"
    done
    ;;
cmake-shared | cmake-static)
    quiet "$cmake" -S "$here/consumer" -B "$work/build" -DFORM="${way#cmake-}" \
        -DBACKENDS="$(echo "$*" | tr ' ' ';')" -DCMAKE_PREFIX_PATH="$work/tree" \
        -DCMAKE_C_COMPILER="$cc" -DREADME="$work/readme"
    quiet "$cmake" --build "$work/build"
    [ "$way" = cmake-shared ] || rm -f "$libdir"/libsyncguard*.so*
    use "$work/build/program"
    recipe "$work/build/embedded"
    [ "$way" = cmake-static ] || recipe "$work/build/billing"
    ;;
uninstall)
    # Exactly the installed files are removed, below DESTDIR too.
    mkdir "$work/manifest"
    find "$work/tree" ! -type d | sed "s#^$work/tree#/opt/syncguard#" >"$work/manifest/install_manifest.txt"
    # All folders are new but one, which stays although it is empty then.
    find "$work/tree" -type d ! -path "*/include" | sed "s#^$work/tree#$work/dest/opt/syncguard#" \
        >"$work/manifest/install_folders.txt"
    mkdir -p "$work/dest/opt"
    mv "$work/tree" "$work/dest/opt/syncguard"
    touch "$work/dest/opt/syncguard/lib-of-somebody-else"
    DESTDIR=$work/dest "$top/scripts/uninstall.sh" "$work/manifest" >/dev/null
    left=$(cd "$work/dest" && find . -mindepth 1 | sort | tr '\n' ' ')
    [ "$left" = "./opt ./opt/syncguard ./opt/syncguard/include ./opt/syncguard/lib-of-somebody-else " ] ||
        { echo "left: $left"; exit 1; }
    ;;
esac
