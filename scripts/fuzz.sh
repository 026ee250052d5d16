#!/bin/sh
# Fuzzes each target for a time, starting from the corpus in the tree.
#
#     fuzz.sh [--seconds N] [TARGET...]      default: 60 s each, all targets
#
# Builds with clang into build-fuzz/ (address and undefined-behaviour sanitizers). Findings are
# left in build-fuzz/findings/ and new inputs in build-fuzz/corpus/, so the corpus in the tree stays
# small. Exit 1 if any target found something.
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=60
if [ "${1-}" = --seconds ]; then
    seconds=$2
    shift 2
fi
build="build-fuzz"
targets=${*:-url key cli redis firestore credentials sqlite}
generator=$(command -v ninja >/dev/null 2>&1 && echo "-G Ninja")

# shellcheck disable=SC2086 # two words or none
cmake -S . -B $build $generator -DCMAKE_C_COMPILER=clang -DSYNCGUARD_FUZZ=ON -DSYNCGUARD_TESTS=OFF \
    -DSYNCGUARD_SANITIZE=address,undefined,fuzzer-no-link \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" >/dev/null || exit 1
# shellcheck disable=SC2046,SC2086 # one word each
cmake --build $build --parallel "${JOBS:-2}" --target $(printf 'fuzz_%s ' $targets) >/dev/null ||
    exit 1

failed=0
mkdir -p $build/findings
for target in $targets; do
    mkdir -p "$build/corpus/$target"
    log=$build/findings/$target.log
    if "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 \
        -max_len=16384 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
        "$build/corpus/$target" "fuzz/corpus/$target" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        printf '%-12s %4d s  %10d runs  no finding\n' "$target" "$seconds" "${runs:-0}"
    else
        printf '%-12s FOUND something, see %s\n' "$target" "$log"
        failed=1
    fi
done
exit $failed
