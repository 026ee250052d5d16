#!/bin/sh
# Runs the test programs labelled "unit", "core" or "valgrind" under memcheck: no error, no leak, no
# descriptor left open.
#
#     run-valgrind.sh BUILD
set -eu
build=${1:-build}
cd "$build"
ctest --show-only=json-v1 -L 'unit|core|valgrind' -LE 'novalgrind|slow' >valgrind-tests.json
exec python3 - <<'END'
import json
import subprocess
import sys

failed = passed = 0
for test in json.load(open("valgrind-tests.json", encoding="utf-8"))["tests"]:
    if "command" not in test:
        sys.exit(f"{test['name']} is not built")
    properties = {p["name"]: p["value"] for p in test.get("properties", [])}
    environment = dict(item.split("=", 1) for item in properties.get("ENVIRONMENT", []))
    run = subprocess.run(
        ["env", *[f"{k}={v}" for k, v in environment.items()],
         "valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full",
         "--show-leak-kinds=definite,indirect,possible",
         "--errors-for-leak-kinds=definite,indirect,possible", *test["command"]],
        cwd=properties.get("WORKING_DIRECTORY", "."), capture_output=True, text=True,
        errors="replace")
    if run.returncode == 0 and "==ERROR" not in run.stderr:
        passed += 1
    else:
        failed += 1
        print(f"valgrind: {test['name']} (exit {run.returncode})")
        print((run.stdout + run.stderr)[-6000:])
print(f"{passed} passed, {failed} failed under valgrind")
sys.exit(1 if failed or not passed else 0)
END
