#!/bin/sh
# All checks other than the tests: those for each change, and those for every night.
#
#     check.sh [--build DIR] [PHASE...]
#
#     for each change   format source layout shell types docs lint asan tsan
#     nightly           long asan_all tsan_all valgrind fault mutants
#
# Without a phase, those for each change run. A failing phase does not stop the others; the summary at the end gives the
# result, the time and the counts of each. The output of a phase is also in DIR/checks/PHASE.log.
#
# asan and tsan run the tests of the core, and the contract suite on memory, SQLite and Redis; asan_all and tsan_all run
# all tests but those labelled "nosan" or "slow", those of hanging servers ("hang": only time counts there) and those
# with Google's emulator ("emulator": their time is spent in Java). Tests labelled "notsan" do not run under the thread
# sanitizer, those labelled "novalgrind" not under valgrind. `check.sh --left-out` lists them all.
# RECORD=docs/guarantees.md makes the phase fault write its figures into that page.
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

# ---- for each change ----

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

# ---- sanitizers ----

left_out='nosan|slow|emulator|hang'
# The contract suite runs over one way to connect per kind of code; the others differ in the server's settings only.
variants='contract_redis_(unix|sentinel|replicas|telemetry)'
variants="$variants|contract_postgres_(unix|serializable|restricted|unannounced|telemetry)|contract_short_.*"

# build_sanitized FOLDER SANITIZERS OTHERS TARGET: OTHERS (ON or OFF) are the backends besides SQLite and Redis.
build_sanitized() {
    # shellcheck disable=SC2086 # two words or none
    cmake -S . -B "$1" $generator -DSYNCGUARD_SANITIZE="$2" -DSYNCGUARD_TESTS=ON -DSYNCGUARD_REQUIRE_ALL="$3" \
        -DSYNCGUARD_SQLITE=ON -DSYNCGUARD_REDIS=ON -DSYNCGUARD_POSTGRES="$3" -DSYNCGUARD_FIRESTORE="$3" \
        -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" >/dev/null &&
        cmake --build "$1" --parallel "$jobs" --target "$4"
}

# run_sanitized FOLDER [ctest options...]: the tests of that build.
run_sanitized() {
    folder=$1
    shift
    SANITIZED=1 ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
        TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 die_after_fork=0" \
        scripts/run-tests.sh "$folder" --all "$@"
}

# sanitize_core FOLDER SANITIZERS LABELS: the tests of each change without those LABELS.
sanitize_core() {
    build_sanitized "$1" "$2" OFF core_and_contract &&
        run_sanitized "$1" -R '^(core_.*|contract_(memory.*|sqlite|redis_tcp))$' -LE "$3"
}

# sanitize_all FOLDER SANITIZERS LABELS: every test without those LABELS.
sanitize_all() {
    build_sanitized "$1" "$2" ON all &&
        run_sanitized "$1" -LE "$3" -E "^($variants)$"
}

phase_asan() {
    sanitize_core build-asan address,undefined "$left_out"
}

phase_tsan() {
    sanitize_core build-tsan thread "$left_out|notsan"
}

phase_asan_all() {
    sanitize_all build-asan address,undefined "$left_out"
}

phase_tsan_all() {
    sanitize_all build-tsan thread "$left_out|notsan"
}

# ---- nightly ----

phase_long() {
    scripts/run-tests.sh "$build" --long
}

phase_valgrind() {
    scripts/run-valgrind.sh "$build"
}

phase_fault() {
    status=0
    python3 tests/fault/run.py --build "$build" ${RECORD:+--record "$RECORD"} || status=1
    [ -z "${RECORD-}" ] || python3 scripts/figures.py || status=1
    return $status
}

phase_mutants() {
    python3 tests/fault/mutants.py
}

if [ "${1-}" = --left-out ]; then
    (cd "$build" && ctest -N -L "$left_out|notsan|novalgrind" && ctest -N -R "^($variants)$")
    exit
fi
phases=${*:-format source layout shell types docs lint asan tsan}
for phase in $phases; do
    if ! command -v "phase_$phase" >/dev/null; then
        echo "check: there is no phase '$phase' (they are at the head of scripts/check.sh)" >&2
        exit 64
    fi
done
summary=
failed=0
passed=0
mkdir -p "$build/checks"
for phase in $phases; do
    echo "== $phase"
    log=$build/checks/$phase.log
    start=$(date +%s)
    rm -f "$log.ok"
    { "phase_$phase" && : >"$log.ok"; } 2>&1 | tee "$log"
    if [ -e "$log.ok" ]; then
        result=ok
        passed=$((passed + 1))
    else
        result=FAILED
        failed=$((failed + 1))
    fi
    rm -f "$log.ok"
    counts=$(grep -E '^[0-9]+ (passed|cells|mutants)' "$log" | tail -n 1)
    summary="$summary$(printf '%-9s %-6s %5d s  %s' "$phase" $result $(($(date +%s) - start)) "$counts")
"
done
printf '== checks\n%s%d passed, %d failed\n' "$summary" $passed $failed
[ $failed = 0 ]
