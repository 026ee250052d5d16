#!/usr/bin/env python3
"""The alert rules of the telemetry guide fire when they should, and only then.

    metric_rules.py GUIDE

`promtool test rules` evaluates the rules over invented series; nothing is started. Times of the
series begin at 0, the epoch, so a timestamp is a number of seconds since the begin of a case.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

HOUR = 3600
SKIPPED = 77


def run(name, values, key="nightly", instance="a"):
    """A series of `run --metrics`, one value per five minutes."""
    return {"series": f'syncguard_run_{name}{{instance="{instance}", key="{key}"}}', "values": values}


def counter(name, values, **labels):
    """A counter of the library, one value per minute."""
    text = ", ".join(f'{label}="{value}"' for label, value in {"job": "app", "instance": "a", **labels}.items())
    return {"series": f"syncguard_{name}{{{text}}}", "values": values}


def job(code, completed, success, attempt_code, acquired, instance="a"):
    """The file of a job that stays as it is for 60 hours."""
    values = {"exit_code": code, "completion_timestamp_seconds": completed, "success_timestamp_seconds": success,
              "attempt_exit_code": attempt_code, "acquired": acquired}
    return [run(name, f"{value}x720", instance=instance) for name, value in values.items()]


RUN_RULES = {"SyncGuardRunFailed", "SyncGuardRunMissing", "SyncGuardRunStoreFails"}
STORE_RULES = {"SyncGuardStoreDown", "SyncGuardStoreFails", "SyncGuardLockLost", "SyncGuardRenewalsFail"}

# Name, interval, series, time, the rules that are checked, those of them that fire.
CASES = [
    ("a job that succeeds every day", "5m",
     [run("completion_timestamp_seconds", f"0x287 {24 * HOUR}x287 {48 * HOUR}x143"),
      run("success_timestamp_seconds", f"0x287 {24 * HOUR}x287 {48 * HOUR}x143"),
      run("attempt_exit_code", "0x720"), run("acquired", "1x720")], "59h", RUN_RULES, set()),
    ("48 hours of skips with -E 0", "5m", job(0, HOUR, HOUR, 0, 0), "49h", RUN_RULES, {"SyncGuardRunMissing"}),
    ("a day of skips is not too long", "5m", job(0, HOUR, HOUR, 0, 0), "26h", RUN_RULES, set()),
    ("skips after a failure", "5m", job(2, 2 * HOUR, HOUR, 0, 0), "5h", RUN_RULES, {"SyncGuardRunFailed"}),
    ("a run that never succeeded", "5m", job(2, 2 * HOUR, 0, 2, 1), "5h", RUN_RULES, {"SyncGuardRunFailed"}),
    ("skips only, no run yet", "5m",
     [run("success_timestamp_seconds", "0x720"), run("attempt_exit_code", "0x720"), run("acquired", "0x720")],
     "30h", RUN_RULES, {"SyncGuardRunMissing"}),
    ("one machine runs the job, the other is skipped", "5m",
     job(0, 40 * HOUR, 40 * HOUR, 0, 1, "a") + job(0, HOUR, HOUR, 0, 0, "b"), "50h", RUN_RULES, set()),
    ("a failure that another machine has made good", "5m",
     job(0, 40 * HOUR, 40 * HOUR, 0, 1, "a") + job(2, 2 * HOUR, HOUR, 0, 0, "b"), "50h", RUN_RULES, set()),
    ("a failure after the success of another machine", "5m",
     job(0, 40 * HOUR, 40 * HOUR, 0, 0, "a") + job(2, 41 * HOUR, HOUR, 2, 1, "b"), "50h", RUN_RULES,
     {"SyncGuardRunFailed"}),
    ("the store does not answer", "5m", job(0, HOUR, HOUR, 69, 0), "5h", RUN_RULES, {"SyncGuardRunStoreFails"}),
    ("the store refuses the password", "5m", job(0, HOUR, HOUR, 77, 0), "5h", RUN_RULES, {"SyncGuardRunStoreFails"}),
    ("the store has no tables", "5m", job(0, HOUR, HOUR, 64, 0), "5h", RUN_RULES, {"SyncGuardRunStoreFails"}),
    ("a program that ends with 64", "5m", job(64, 2 * HOUR, HOUR, 64, 1), "5h", RUN_RULES, {"SyncGuardRunFailed"}),
    ("a program that ends with 69", "5m", job(69, 2 * HOUR, HOUR, 69, 1), "5h", RUN_RULES, {"SyncGuardRunFailed"}),
    ("gave up waiting", "5m", job(0, HOUR, HOUR, 75, 0), "5h", RUN_RULES, set()),
    ("a service whose store is down, one attempt per minute", "1m",
     [counter("operations_total", "0+1x20 20x60", type="acquire", result="success", reason="", error=""),
      counter("operations_total", "_x20 1+1x60", type="acquire", result="failure", reason="",
              error="ServiceUnavailable")], "50m", STORE_RULES, {"SyncGuardStoreDown"}),
    ("a service with some failures", "1m",
     [counter("operations_total", "0+10x80", type="acquire", result="success", reason="", error=""),
      counter("operations_total", "0+1x80", type="acquire", result="failure", reason="", error="NetworkTimeout")],
     "50m", STORE_RULES, set()),
    ("many failures, some successes", "1m",
     [counter("operations_total", "0+10x80", type="acquire", result="success", reason="", error=""),
      counter("operations_total", "0+60x80", type="acquire", result="failure", reason="", error="NetworkTimeout")],
     "50m", STORE_RULES, {"SyncGuardStoreFails"}),
    ("an idle service", "1m",
     [counter("operations_total", "5x80", type="acquire", result="success", reason="", error="")],
     "50m", STORE_RULES, set()),
    ("a lost lock and failing renewals", "1m",
     [counter("locks_lost_total", "0x45 1x40", reason="absent"), counter("renewals_total", "0+1x80", result="failed")],
     "50m", STORE_RULES, {"SyncGuardLockLost", "SyncGuardRenewalsFail"}),
]


def firing(case):
    """The test of promtool that asks which alerts fire: ALERTS is the series that the rules write."""
    name, interval, series, when, rules, expected = case
    samples = [{"labels": f'{{alertname="{rule}"}}', "value": 1} for rule in sorted(expected)]
    names = "|".join(sorted(rules))
    return {"name": name, "interval": interval, "input_series": series,
            "promql_expr_test": [{
                "expr": f'max by (alertname) (ALERTS{{alertstate="firing", alertname=~"{names}"}})',
                "eval_time": when, "exp_samples": samples}]}


def main():
    if shutil.which("promtool") is None:
        print("SKIP metrics_rules: promtool is not installed (package prometheus)")
        return SKIPPED
    with open(sys.argv[1], encoding="utf-8") as file:
        rules = re.search(r"^<!-- file: syncguard.rules.yml -->\n```yaml\n(.*?)^```", file.read(), re.M | re.S)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "syncguard.rules.yml"), "w", encoding="utf-8") as file:
            file.write(rules.group(1))
        with open(os.path.join(folder, "cases.yml"), "w", encoding="utf-8") as file:
            yaml.safe_dump({"rule_files": ["syncguard.rules.yml"], "evaluation_interval": "5m",
                            "tests": [firing(case) for case in CASES]}, file)
        checked = subprocess.run(["promtool", "check", "rules", "syncguard.rules.yml"], cwd=folder, check=False)
        tested = subprocess.run(["promtool", "test", "rules", "cases.yml"], cwd=folder, check=False)
    print(f"{len(CASES)} cases")
    return checked.returncode or tested.returncode


if __name__ == "__main__":
    sys.exit(main())
