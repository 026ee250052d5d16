#!/usr/bin/env python3
"""`syncguard run -n --min-hold`: a job that two machines start runs once per period.

    min_hold.py COMMAND URL

Two processes that start 2 s apart, a job of 100 ms, a minimum of 5 s: it runs once. Killed in the middle, the lock ends
with its lease, and the other one runs then, but not before.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

COMMAND, URL = sys.argv[1:]
TOLERANCE = 1.0
faults = []


def check(text, condition):
    if not condition:
        faults.append(text)
        print("FAILED: " + text)


def command(*words, **settings):
    environment = dict(os.environ, SYNCGUARD_URL=URL)
    return subprocess.Popen([COMMAND, *words], env=environment, stdin=subprocess.DEVNULL, **settings)


def run(*words):
    process = command("run", *words, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def once_per_period(folder):
    ran = os.path.join(folder, "ran")
    job = "echo x >>%s; sleep 0.1" % ran
    words = ["-n", "--min-hold", "5s", "period", "-c", job]
    begun = time.monotonic()
    check("the first one runs it", run(*words)[0] == 0)
    time.sleep(max(0, begun + 2 - time.monotonic()))
    code, said = run(*words)
    if time.monotonic() - begun < 5:  # otherwise this machine was too slow to show anything
        check("the second one does not", code == 1)
        check("and names the holder", "held by" in said or said == "")
        check("it ran once", open(ran).read() == "x\n")
    check("in the next period it runs again", run("-w", "60s", *words[1:])[0] == 0)
    check("which begins when the minimum is over", time.monotonic() - begun >= 5)
    return begun


def once_per_lease(folder):
    up = os.path.join(folder, "up")
    first = command("run", "--ttl", "4s", "--min-hold", "60s", "killed", "--", "sh", "-c",
                    "echo up >%s; exec sleep 60" % up, stderr=subprocess.DEVNULL)
    while not os.path.exists(up):
        time.sleep(0.02)
    begun = time.monotonic()
    first.send_signal(signal.SIGKILL)
    first.wait()
    check("another one runs it after the lease", run("-w", "60s", "killed", "--", "true")[0] == 0)
    # The last renewal was at most a third of the lease ago.
    check("not before", time.monotonic() - begun >= 4 * 2 / 3 + TOLERANCE - 0.1)


def not_started():
    """A machine without the program must not use up the period of the others."""
    check("not found", run("--min-hold", "1h", "missing", "--", "/no/such/program")[0] == 127)
    check("the next one runs it", run("-n", "--min-hold", "1s", "missing", "--", "true")[0] == 0)
    check("a failure counts", run("--min-hold", "1h", "failed", "--", "false")[0] == 1)
    check("and is not repeated", run("-n", "-E", "9", "failed", "--", "true")[0] == 9)
    forced = command("release", "--key", "failed", "--force", stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
    check("the operator can end it", forced.wait() == 0 and run("-n", "failed", "--", "true")[0] == 0)


def main():
    folder = tempfile.mkdtemp(prefix="syncguard-min-hold-")
    try:
        once_per_period(folder)
        once_per_lease(folder)
        not_started()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("%d faults" % len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
