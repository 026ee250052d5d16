#!/bin/sh
# Runs the test programs labelled "core" or "valgrind", and the contract suite over memory,
# under memcheck, and fails on any error or leak. The group "fork" is left out, because a child cannot free the
# memory of the parent's other threads. UNDER_MEMCHECK tells single tests that they run under memcheck.
#
#     run-valgrind.sh BUILD
set -eu
build=${1:-build}
cd "$build"
ctest --show-only=json-v1 -L 'core|valgrind' -LE 'novalgrind|slow' >valgrind-tests.json
exec python3 - <<'END'
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MEMCHECK = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full",
            "--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"]
CONTRACT = "tests/contract/contract"

jobs = []
for test in json.load(open("valgrind-tests.json", encoding="utf-8"))["tests"]:
    if "command" not in test:
        sys.exit(f"{test['name']} is not built")
    with open(test["command"][0], "rb") as program:
        if program.read(4) != b"\x7fELF":
            continue  # a script: memcheck would look at the shell
    properties = {p["name"]: p["value"] for p in test.get("properties", [])}
    environment = dict(item.split("=", 1) for item in properties.get("ENVIRONMENT", []))
    jobs.append((test["name"], test["command"], environment,
                 properties.get("WORKING_DIRECTORY", ".")))
if os.path.exists(CONTRACT):
    listed = subprocess.run([CONTRACT, "--list"], check=True, capture_output=True, text=True)
    groups = sorted({line.split()[0] for line in listed.stdout.splitlines()} - {"fork"})
    jobs += [(f"contract {g}", [CONTRACT, "--group", g, "memory:"], {}, ".") for g in groups]


def run(job):
    name, command, environment, folder = job
    done = subprocess.run(MEMCHECK + command, cwd=folder, env={**os.environ, **environment, "UNDER_MEMCHECK": "1"},
                          capture_output=True, text=True, errors="replace")
    return name, done


failed = 0
with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
    for name, done in pool.map(run, jobs):
        if done.returncode != 0:
            failed += 1
            print(f"valgrind: {name} (exit {done.returncode})")
            print((done.stdout + done.stderr)[-6000:])
print(f"{len(jobs) - failed} passed, {failed} failed under valgrind")
sys.exit(1 if failed or not jobs else 0)
END
