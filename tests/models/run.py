#!/usr/bin/env python3
"""Checks the models of one key with Spin, and that each broken variant has a counterexample.

    run.py [--jobs N] [--keep DIR] [NAME...]      NAME: part of "model variant"

A search that is cut short (depth, memory, time) fails, and so does a broken variant without a counterexample. Variants that
show a documented limit are expected to break, too.
"""
import argparse
import concurrent.futures
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST_S = 600
DEPTH = 4000000

# Model, what is left out or added to keep the search small, and what must break.
SOUND = [
    ("redis", ""),
    ("redis", "REPLICA NO_RENEWALS"),
    ("redis", "REPLICA SENDS=1"),
    ("postgres", ""),
    ("postgres", "STANDBY NO_RENEWALS"),
    ("postgres", "STANDBY SENDS=1"),
    ("firestore", ""),
    ("firestore", "CLEANUP"),
    ("sqlite", ""),
]
DOCUMENTED = [
    ("redis", "REPLICA ASYNC SENDS=1"),
]
BROKEN = [
    ("redis", "", "LIVENESS_SIGN NO_TOLERANCE COUNTER_APART RELEASE_WITHOUT_OWNER LEASE_FROM_REPLY "
                  "UNDO_WITHOUT_TOMBSTONE UNDO_COUNTED_FROM_THE_SENDING"),
    ("redis", "REPLICA NO_RENEWALS", "RESEND_WITHOUT_WRITE WAIT_SKIPPED_ON_RESEND"),
    ("redis", "REPLICA SENDS=1", "EXTEND_WITHOUT_WAIT"),
    ("postgres", "", "LIVENESS_SIGN NO_TOLERANCE COUNTER_APART RELEASE_WITHOUT_OWNER LEASE_FROM_REPLY "
                     "UNDO_ENDS_EARLY UNDO_COUNTED_FROM_THE_SENDING EXTEND_REVIVES CLEANUP_BY_KEY"),
    ("postgres", "STANDBY NO_RENEWALS", "RESEND_WITHOUT_WRITE CANCELLED_WAIT_COUNTS"),
    ("postgres", "STANDBY SENDS=1", "CANCELLED_EXTEND_COUNTS"),
    ("firestore", "", "LIVENESS_SIGN NO_TOLERANCE CLOCKS_BEYOND_THE_LIMIT COUNTER_WITHOUT_PRECONDITION "
                      "RELEASE_WITHOUT_PRECONDITION LEASE_FROM_REPLY UNDO_ENDS_EARLY EXTEND_BY_A_CLOCK_BEHIND"),
    ("firestore", "CLEANUP", "CLEANUP_BY_ANY_CLOCK"),
    ("sqlite", "", "LIVENESS_SIGN NO_TOLERANCE RELEASE_WITHOUT_OWNER LEASE_FROM_REPLY EXTEND_REVIVES CLEANUP_BY_KEY "
                   "TOLD_BEFORE_SYNC FOREIGN_ID_IS_ANOTHER_BOOT SHIFTED_CLOCK"),
]


def all_cases():
    cases = [(model, options, "sound") for model, options in SOUND]
    cases += [(model, options, "documented") for model, options in DOCUMENTED]
    for model, options, faults in BROKEN:
        cases += [(model, f"{options} BROKEN_{fault}".strip(), "broken") for fault in faults.split()]
    return cases


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=LONGEST_S, check=False).stdout


def counterexample(folder, model, defines):
    """What the printf statements of the model say on the way to the failed assertion."""
    text = run(["spin", "-t", "-T", *defines, model + ".pml"], folder)
    steps = []
    for line in text.splitlines():
        if line.startswith("spin: trail ends"):
            break
        failed = re.search(r"text of failed assertion: (.*)", line)
        if failed:
            steps.append(failed.group(1))
        elif line.strip() and not line.startswith("spin:"):
            steps.append(line.strip())
    return "; ".join(steps)


def check(case, keep):
    """Returns (states, depth, seconds, verdict, good, story)."""
    model, options, kind = case
    defines = ["-D" + word for word in options.split()]
    folder = tempfile.mkdtemp(prefix="models-", dir=keep)
    begun = time.monotonic()
    try:
        for name in os.listdir(HERE):
            if name.endswith(".pml"):
                shutil.copy(os.path.join(HERE, name), folder)
        text = run(["spin", "-a", *defines, model + ".pml"], folder)
        # All states of a sound model, depth first; the shortest counterexample of a broken one, breadth first.
        how = [] if kind == "sound" else ["-DBFS"]
        text += run(["gcc", "-O2" if kind == "sound" else "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=4000", *how, "-o", "pan", "pan.c"], folder)
        if not os.path.exists(os.path.join(folder, "pan")):
            return 0, 0, 0.0, "cannot be built", False, text.strip()
        text = run(["./pan", "-E", f"-m{DEPTH}", "-w24"], folder)
        states = re.search(r"([\d.e+]+) states, stored", text)
        depth = re.search(r"depth reached (\d+)", text)
        errors = re.search(r"errors: (\d+)", text)
        if not (states and depth and errors):
            return 0, 0, 0.0, "the search ended early", False, text.strip()
        cut = re.search(r"max search depth too small|out of memory|truncated|not completed|aborting", text)
        broke = int(errors.group(1)) > 0
        story = counterexample(folder, model, defines) if broke else ""
        figures = int(float(states.group(1))), int(depth.group(1)), time.monotonic() - begun
        if kind == "sound":
            verdict = "BROKEN" if broke else "search cut short" if cut else "holds"
            return *figures, verdict, not broke and not cut, story
        verdict = "counterexample" if broke else "NO COUNTEREXAMPLE"
        return *figures, verdict + (", as documented" if broke and kind == "documented" else ""), broke, story
    except subprocess.TimeoutExpired:
        return 0, 0, time.monotonic() - begun, "out of time", False, ""
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--keep", help="keep the generated files in this folder")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            print(f"SKIP models: {tool} is not installed")
            return 77
    cases = [case for case in all_cases() if not options.names or
             any(name in f"{case[0]} {case[1]}" for name in options.names)]
    begun = time.monotonic()
    failed = 0
    print(f"{'model':<10} {'variant':<52} {'states':>10} {'depth':>8} {'time':>8}  verdict")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda case: check(case, options.keep), cases)
        for (model, variant, _), (states, depth, seconds, verdict, good, story) in zip(cases, results):
            print(f"{model:<10} {variant or 'as it is':<52} {states:>10,} {depth:>8,} {seconds:>6.1f} s  {verdict}")
            if story:
                print(f"           {story}")
            sys.stdout.flush()
            failed += not good
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(cases) - failed} as expected, {failed} not, in {time.monotonic() - begun:.0f} s "
          f"({used.ru_utime + used.ru_stime:.0f} s of processor time)")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
