#!/bin/sh
# The C++ headers and their test with every compiler that is here, as C++17 and C++20, with warnings as
# errors; the test then runs on memory and SQLite.
#
#     cpp_compilers.sh SOURCE BUILD CXX
set -eu
source=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strict="-Wall -Wextra -Wpedantic -Wshadow -Werror"
seen=

# Each header by itself, twice in one file.
for header in $(cd "$source/include" && find . -name '*.hpp' | sed 's#^\./##'); do
    # shellcheck disable=SC2086 # several options
    printf '#include <%s>\n#include <%s>\nint compiles;\n' "$header" "$header" |
        "$3" -std=c++17 $strict -fsyntax-only -I"$source/include" -x c++ -
done

for cxx in "$3" g++ clang++; do
    path=$(command -v "$cxx") || continue
    path=$(readlink -f "$path")
    case "$seen " in *" $path "*) continue ;; esac
    seen="$seen $path"
    for standard in c++17 c++20; do
        # shellcheck disable=SC2086 # several options
        "$cxx" -std=$standard $strict -I"$source/include" "$here/test_cpp.cpp" -o "$work/test" \
            -L"$build" -Wl,-rpath,"$build" -lsyncguard -pthread
        for url in memory: "sqlite:$work/$standard.db"; do
            "$work/test" "$url" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
            echo "$cxx $standard ${url%%:*}: $(grep -c '^ok' "$work/log") checks"
        done
        rm -f "$work/$standard.db"*
    done
done
