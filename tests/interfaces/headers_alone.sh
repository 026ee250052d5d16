#!/bin/sh
# Compiles every installed header by itself, twice in one file, as C99 and as C++11, and checks
# that no public header includes a third-party one.
#
#     headers_alone.sh INCLUDE_DIR CC CXX
set -u
include=$1 cc=$2 cxx=$3
strict="-Wall -Wextra -pedantic -Werror -Wundef -fsyntax-only"
failed=0
count=0

compile() { # HEADER COMPILER STANDARD LANGUAGE
    # shellcheck disable=SC2086 # several options
    if ! printf '#include <%s>\n#include <%s>\nint header_compiles;\n' "$1" "$1" |
        "$2" -std="$3" $strict -I"$include" -x "$4" -; then
        echo "<$1> is no good as $3"
        failed=$((failed + 1))
    fi
    count=$((count + 1))
}

# Every #include of a header must be one of ours, of the C library or of POSIX.
only_known() { # HEADER
    foreign=$(grep -hoE '^#include <[^>]+>' "$include/$1" |
        grep -vE '<(stdbool|stddef|stdint|poll|pthread|time)\.h>')
    if [ -n "$foreign" ]; then
        echo "<$1> brings in $foreign"
        failed=$((failed + 1))
    fi
}

for file in $(cd "$include" && find . -name '*.h' | sed 's#^\./##' | sort); do
    compile "$file" "$cc" c99 c
    compile "$file" "$cc" c11 c
    compile "$file" "$cxx" c++11 c++
    only_known "$file"
done

# The initializers must work in C++ too, which has no designated ones; every header has the
# macro of each of its options structs.
{
    for file in $(cd "$include" && find . -name '*.h' | sed 's#^\./##' | sort); do
        echo "#include <$file>"
    done
    echo 'int use();'
    echo 'int use() {'
    (cd "$include" && grep -rhoE '^#define SYNCGUARD_[A-Z_]+_INIT\b' .) | awk '{print $2}' | sort |
        while read -r macro; do
            type=$(echo "${macro%_INIT}" | tr '[:upper:]' '[:lower:]')
            echo "$type v_$type = $macro; (void)v_$type;"
        done
    echo 'return 0; }'
} >"${TMPDIR:-/tmp}/syncguard-init-$$.cpp"
for attempt in "$cxx -std=c++11 -x c++" "$cc -std=c99 -x c"; do
    # shellcheck disable=SC2086 # several options
    if ! $attempt $strict -I"$include" \
        "${TMPDIR:-/tmp}/syncguard-init-$$.cpp"; then
        echo "the initializers are no good with $attempt"
        failed=$((failed + 1))
    fi
    count=$((count + 1))
done
rm -f "${TMPDIR:-/tmp}/syncguard-init-$$.cpp"

echo "$count compilations, $failed failed"
[ $failed = 0 ] && [ $count -gt 2 ]
