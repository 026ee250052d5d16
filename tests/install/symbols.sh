#!/bin/sh
# The symbols that a library exports, and its global state:
#   - the .so exports exactly the names listed in symbols-LIBRARY.txt;
#   - the names that the headers in sys/ declare, and the module, have a version of their own;
#   - the .a defines no global name outside our prefixes;
#   - there is no writable global state but that listed in state-LIBRARY.txt.
#
#     symbols.sh BUILD LIBRARY [--update]
set -u
build=$1 library=$2
here=$(cd "$(dirname "$0")" && pwd)
failed=0

top=$(cd "$here/../.." && pwd)
versioned=$(nm -D --with-symbol-versions --defined-only "$build/lib$library.so" | awk '$2 != "A" {print $3}' |
    LC_ALL=C sort)
exported=$(printf '%s\n' "$versioned" | sed 's/@.*//')
# Writable for good: .data and .bss, but not .data.rel.ro, which is constant after loading. The
# names that begin with an underscore or "completed" are the compiler's start-up code, "DW.ref."
# is how code with cleanups finds its unwinder.
state=$(nm -f sysv "$build/lib$library.so" | awk -F '|' '
    { gsub(/ /, "") } $7 ~ /^\.(data|bss|tdata|tbss)$/ { print $1 }' |
    grep -vE '^(completed|_|DW[.]ref[.])' | sed 's/\.[0-9]*$//' | LC_ALL=C sort -u)
if [ "${3-}" = --update ]; then
    printf '%s\n' "$exported" >"$here/symbols-$library.txt"
    if [ -n "$state" ]; then printf '%s\n' "$state" >"$here/state-$library.txt"; fi
    exit 0
fi

compare() { # FILE TEXT WHAT
    list=$1
    [ -e "$list" ] || list=/dev/null
    if ! printf '%s\n' "$2" | sed '/^$/d' | diff -u "$list" -; then
        echo "lib$library.so: $3 differ from $1"
        echo "(if that is meant: tests/install/symbols.sh build $library --update)"
        failed=1
    fi
}
compare "$here/symbols-$library.txt" "$exported" "exported names"
compare "$here/state-$library.txt" "$state" "writable globals"

abi=$(sed -n 's/^#define SYNCGUARD_ABI //p' "$top/include/syncguard/sys/module.h")
in_sys=" $(cat "$top"/include/syncguard/sys/*.h | grep -oE '(^|[ *])syncguard_[a-z0-9_]+\(' | tr -d ' *(' | tr '\n' ' ')"
for symbol in $versioned; do
    name=${symbol%%@*}
    node=SYNCGUARD_0
    case $name$in_sys in syncguard_module_* | *" $name "*) node=SYNCGUARD_SYS_$abi ;; esac
    [ "$symbol" = "$name@@$node" ] || { echo "lib$library.so: $symbol does not have the version $node" && failed=1; }
done

foreign=$(nm --defined-only --extern-only "$build/lib$library.a" 2>/dev/null |
    awk 'NF == 3 {print $3}' | grep -vE '^(syncguard_|sg_|DW[.]ref[.])')
if [ -n "$foreign" ]; then
    echo "lib$library.a defines names without our prefix:"
    printf '%s\n' "$foreign"
    failed=1
fi
exit $failed
