#!/bin/sh
# Runs the tests of a build folder and counts them.
#
#     run-tests.sh BUILD [--long|--all] [ctest options...]
#
# Without an option, the tests without the label "long" run; with --long only those with it; with --all both. Most
# tests wait most of the time, so six run at once for each processor (two under the sanitizers). Tests that do not
# wait count as several, and those that measure time run alone.
#
# A skip is a ctest test that reports itself skipped, a cmocka case that calls
# skip(), or a line "SKIP name: reason" of a script. With CI=true each of them must be
# listed in tests/skips.txt. The last line is "N passed, N failed, N skipped".
#
# No test may print a password or token of its servers, or the key of the tests about secrets (MARKERS): a test that
# does so counts as failed. (Tests that compare such a text themselves print it only when they fail.)
#
# A failing test fails the run. Only a test with the ctest label "timing" is repeated, once; it
# must be listed in tests/timing.txt with the reason. With SANITIZED=1 programs run ten times
# slower, so fewer run at once.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-build}
[ $# -eq 0 ] || shift
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
[ "${SANITIZED:-0}" = 1 ] && jobs=$((2 * jobs)) || jobs=$((6 * jobs))
name=tests
set_of=-LE
case ${1-} in
--long) name=tests-long set_of=-L && shift ;;
--all) set_of= && shift ;;
esac
started=$(date +%s)

cd "$build"
report=$name.xml
status=0
rm -f $report $name.count
# shellcheck disable=SC2086 # two words or none
ctest ${set_of:+$set_of ^long$} --output-on-failure --no-tests=error --parallel "$jobs" --output-junit $report \
    --test-output-size-passed 4000000 --test-output-size-failed 4000000 "$@" || status=$?
if [ ! -s $report ]; then
    echo "run-tests: ctest wrote no report" >&2
    exit 1
fi

python3 - "$report" "$top/tests" "$status" "$name.count" "$started" <<'END'
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as tree

report, folder, status, counted = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
MARKERS = ("pw-marker-", "fake_server-token-", "M4rk3dK3y")


def reasons(name):
    found = {}
    path = os.path.join(folder, name)
    for line in open(path, encoding="utf-8"):
        words = line.split(None, 1)
        if words and not words[0].startswith("#"):
            if len(words) < 2:
                sys.exit(f"{path}: '{words[0]}' gives no reason")
            found[words[0]] = words[1].strip()
    return found


def labelled():
    text = subprocess.run(["ctest", "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
    return {test["name"] for test in json.loads(text)["tests"]
            for one in test.get("properties", []) if one["name"] == "LABELS" and "timing" in one["value"]}


allowed = reasons("skips.txt")
timing = reasons("timing.txt")
for name in sorted(labelled() ^ set(timing)):
    sys.exit(f"{name}: has the label timing or a line in tests/timing.txt, but not both")
for name in sorted(timing):
    print(f"may be repeated once: {name} ({timing[name]})")
if not timing:
    print("no test may be repeated")

passed = failed = cases = repeated = told = 0
skips = []
slowest = []
for test in tree.parse(report).getroot().iter("testcase"):
    name, state = test.get("name"), test.get("status")
    output = test.findtext("system-out") or ""
    slowest.append((float(test.get("time") or 0), name))
    for marker in (m for m in MARKERS if m in output):
        told += 1
        print(f"printed a secret ({marker}): {name}")
    if state == "run" and any(m in output for m in MARKERS):
        failed += 1
    elif state == "run":
        passed += 1
    elif state == "fail" and name in timing and \
            subprocess.run(["ctest", "--output-on-failure", "-R", f"^{re.escape(name)}$"], check=False).returncode == 0:
        passed += 1
        repeated += 1
        print(f"failed once, and passed when it was repeated: {name}")
    elif state == "fail":
        failed += 1
    else:  # "notrun" and "disabled": skipped, or its program is not there
        message = test.find("skipped")
        text = message.get("message", "") if message is not None else ""
        if "SKIP" in text or state == "disabled":
            said = re.findall(r"^SKIP \S+: (.*)$", output, re.M)
            skips.append((name, said[0] if said else text or state))
            continue
        else:
            failed += 1
            print(f"not run: {name} {text}")
    cases += len(re.findall(r"^\[ +OK \] ", output, re.M))
    for case in re.findall(r"^\[  SKIPPED \] (?!\d+ test)(\S+)$", output, re.M):
        skips.append((case, f"in {name}"))
    for case, why in re.findall(r"^SKIP (\S+): (.*)$", output, re.M):
        skips.append((case, why))

strict = os.environ.get("CI", "").lower() in ("1", "true", "yes")
seen = set()
for name, why in skips:
    if name in seen:
        continue
    seen.add(name)
    if name in allowed:
        print(f"skipped, as tests/skips.txt allows: {name} ({allowed[name]})")
    else:
        print(f"skipped, and not in tests/skips.txt: {name} ({why})")
        failed += strict

slowest.sort(reverse=True)
print("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for seconds, name in slowest[:5]))
print(f"{cases} cases of cmocka programs among them")
print(f"{time.time() - int(sys.argv[5]):.0f} s")
summary = f"{passed} passed, {failed} failed, {len(seen)} skipped"
with open(counted, "w", encoding="utf-8") as count:
    count.write(summary + "\n")
print(summary, flush=True)
sys.exit(1 if failed or told or (status and not repeated) else 0)
END
