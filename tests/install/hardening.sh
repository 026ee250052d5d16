#!/bin/sh
# The files that were built have full RELRO, no executable stack, a stack protector and the checks of FORTIFY;
# programs are position independent.
#
#     hardening.sh FILE...      each with the modules beside it
set -u
failed=0

fault() { # FILE TEXT
    echo "$1: $2"
    failed=1
}

inspect() {
    readelf -W --file-header --segments --dynamic --dyn-syms "$1" >"$work/elf" || fault "$1" "readelf fails"
    has() { grep -Eq "$1" "$work/elf"; }
    has 'GNU_RELRO' || fault "$1" "no RELRO"
    has 'FLAGS.*BIND_NOW' || fault "$1" "RELRO is partial: symbols are bound lazily"
    has 'GNU_STACK .* RW ' || fault "$1" "the stack is executable"
    has '__stack_chk_fail' || fault "$1" "no stack protector"
    has ' __[a-z]+_chk@' || fault "$1" "no function of FORTIFY"
    has 'TEXTREL' && fault "$1" "relocations in the text"
    case $1 in
    *.so) ;;
    *) has 'FLAGS_1.*PIE' || fault "$1" "not position independent" ;;
    esac
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0
for file in "$@"; do
    case $file in
    *.so) set -- "$file" "${file%.so}"-*.so ;;
    *) set -- "$file" ;;
    esac
    for one in "$@"; do
        [ -e "$one" ] || continue
        inspect "$one"
        count=$((count + 1))
    done
done
# Checks the test itself: a program without any of these fails.
echo 'int main(void) { return 0; }' >"$work/plain.c"
${CC:-cc} -no-pie -z norelro -z lazy -fno-stack-protector "$work/plain.c" -o "$work/plain" || exit 1
found=$(inspect "$work/plain" | wc -l)
[ "$found" -ge 5 ] || fault hardening.sh "finds $found faults in a program that has at least 5"
echo "$count files"
exit $failed
