#!/bin/sh
# The whole of `make fault`: the matrix of stores and faults, then the mutants. One line per cell.
# RECORD=docs/guarantees.md writes the figures of the matrix into that page.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
failed=0
start=$(date +%s)
python3 tests/fault/run.py --build "$build" ${RECORD:+--record "$RECORD"} || failed=1
[ -z "${RECORD-}" ] || python3 scripts/figures.py
matrix=$(date +%s)
python3 tests/fault/mutants.py || failed=1
echo "matrix $((matrix - start)) s, mutants $(($(date +%s) - matrix)) s"
exit $failed
