#!/bin/sh
# Everything that must be clean before a change goes in.
#
#     check.sh [--build DIR] [PHASE...]      phases: format source layout shell types docs lint asan
#                                            tsan valgrind
#
# Without a phase all of them run, each in spite of the others' faults; the summary at the end
# gives each one's result and time. Left out under the sanitizers are tests labelled "nosan" or
# "slow", those of hanging servers ("hang": only time counts there) and those beside Google's
# emulator ("emulator": their time goes into Java); "notsan" ones under the thread sanitizer,
# "novalgrind" ones under valgrind. `check.sh --left-out` lists them all.
set -u
cd "$(dirname "$0")/.." || exit 1
build=build
if [ "${1-}" = --build ]; then
    build=$2
    shift 2
fi
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
generator=$(command -v ninja >/dev/null 2>&1 && echo "-G Ninja")

c_files() {
    git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cpp' '*.hpp'
}

phase_format() {
    c_files | xargs -r clang-format --dry-run -Werror
}

# One process per file, so that all cores work; the build folder gives the flags.
phase_lint() {
    git ls-files --cached --others --exclude-standard 'src/*.c' |
        xargs -r -n 1 -P "$jobs" scripts/tidy-one.sh "$build"
}

phase_source() {
    scripts/check-source.sh
}

phase_layout() {
    scripts/check-layout.py --self-test && scripts/check-layout.py
}

phase_shell() {
    git ls-files --cached --others --exclude-standard '*.sh' .ci/run | xargs -r shellcheck
}

phase_types() {
    mypy --config-file bindings/python/pyproject.toml bindings/python/src
}

phase_docs() {
    scripts/check-docs.sh "$build"
}

# What the sanitizers leave out, by label and by name: see the head. The contract suite runs over
# one way to connect per kind of code; the others differ in the server's settings only.
left_out='nosan|slow|emulator|hang'
variants='contract_redis_(unix|sentinel|replicas|telemetry)'
variants="$variants|contract_postgres_(serializable|restricted|unannounced|telemetry)"

# sanitized FOLDER SANITIZERS LABELS: a build of its own, and the tests in it without those LABELS.
sanitized() {
    # shellcheck disable=SC2086 # two words or none
    cmake -S . -B "$1" $generator -DSYNCGUARD_SANITIZE="$2" -DSYNCGUARD_REQUIRE_ALL=ON \
        -DSYNCGUARD_TESTS=ON -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" >/dev/null &&
        cmake --build "$1" --parallel "$jobs" &&
        SANITIZED=1 scripts/run-tests.sh "$1" --all -LE "$3" -E "$variants"
}

phase_asan() {
    ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
        sanitized build-asan address,undefined "$left_out"
}

phase_tsan() {
    TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 die_after_fork=0" \
        sanitized build-tsan thread "$left_out|notsan"
}

phase_valgrind() {
    scripts/run-valgrind.sh "$build"
}

if [ "${1-}" = --left-out ]; then
    (cd "$build" && ctest -N -L "$left_out|notsan|novalgrind" && ctest -N -R "$variants")
    exit
fi
phases=${*:-format source layout shell types docs lint asan tsan valgrind}
summary=
failed=0
passed=0
for phase in $phases; do
    echo "== $phase"
    start=$(date +%s)
    if "phase_$phase"; then
        result=ok
        passed=$((passed + 1))
    else
        result=FAILED
        failed=$((failed + 1))
    fi
    summary="$summary$(printf '%-9s %-6s %4d s' "$phase" $result $(($(date +%s) - start)))
"
done
printf '== checks\n%s%d passed, %d failed\n' "$summary" $passed $failed
[ $failed = 0 ]
