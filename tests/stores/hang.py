#!/usr/bin/env python3
"""An abort or a deadline ends every operation while the server hangs.

    hang.py CLIENT COMMAND STORE     COMMAND: syncguard, to set the store up

Starts the store, lets hang_client use it, stops every process of the server with SIGSTOP (for
SQLite: holds the file's write lock, as a stopped writer would), and measures how late each
operation returns. Also: opening while the server hangs, and a name that does not resolve. Median within
10 ms, never over 100, each beyond what a plain wait is late on this machine at the same time: these
are the bars of `make bench`. The test fails when they are missed by far, as when an operation
waits for the server instead of its own deadline.
"""
import os
import shutil
import signal
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402

ENDED = {"deadline": ("NetworkTimeout", "AcquisitionTimeout"), "abort": ("Aborted",)}
# Where callers share the making of a connection, they also share its failure.
MAY_FAIL = {"redis": ("ServiceUnavailable",)}
# How far beyond its bar a figure has to be for the test to fail, for most calls and for any: other
# work may take the processor for a moment.
FAR_MS = 150
VERY_FAR_MS = 2000
FEW = 3
# Readers of a SQLite file do not wait for a writer.
MAY_SUCCEED = {"sqlite": ("is_locked", "get_by_key", "get_by_id", "list")}


STORES = ("sqlite", "redis", "postgres", "firestore")
NAMED = {"redis": ("--named", "redis://slow.invalid:6379"),
         "postgres": ("--open", "postgres://postgres@slow.invalid/postgres"),
         "firestore": ("--named", "firestore://hang?emulator_any_host=true"
                                  "&emulator_host=slow.invalid:80")}


def start_client(client, server, *arguments):
    environment = dict(os.environ, **server.environment())
    return subprocess.Popen([client, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, env=environment)


def lines_of(process):
    return [line.split() for line in process.communicate("go\n", timeout=240)[0].splitlines()
            if line != "ready"]


def check_lines(what, lines, found, may_succeed=(), may_fail=()):
    """Prints what is wrong, and adds (what, median, worst, allowed ...) to found; True if fine."""
    late = [(float(ms), name, end) for name, end, ms, _ in lines if name != "control"]
    control = [float(ms) for name, _, ms, _ in lines if name == "control"]
    fine = True
    for name, end, _, status in lines:
        if name != "control" and status not in ENDED[end] + may_fail and name not in may_succeed:
            print("FAILED: %s: %s by %s answered %s" % (what, name, end, status))
            fine = False
    if not late:
        print("FAILED: %s: no answers" % what)
        return False
    median = statistics.median(ms for ms, _, _ in late)
    worst = max(late)
    allowed = (10 + statistics.median(control), 100 + max(control))
    found.append((what, len(late), median, worst[0], allowed[0], allowed[1]))
    print("%s: %d calls, median %.2f ms late (at most %.1f), worst %.2f: %s by %s (at most %.1f)" %
          (what, len(late), median, allowed[0], *worst, allowed[1]))
    far = sum(ms > allowed[1] + FAR_MS for ms, _, _ in late)
    if median > allowed[0] + FAR_MS or far > FEW or worst[0] > allowed[1] + VERY_FAR_MS:
        print("FAILED: %s: too late" % what)
        fine = False
    return fine


def measure(client, command, name, found):
    folder = servers.make_folder("syncguard-hang-")
    server = servers.make(name, folder)
    fine = True
    try:
        server.start()
        server.setup(os.path.dirname(command))
        process = start_client(client, server, server.url())
        if process.stdout.readline() != "ready\n":
            print("FAILED: the client could not use the store")
            return False
        server.pause()
        try:
            fine = check_lines(name, lines_of(process), found, MAY_SUCCEED.get(name, ())) and fine
            if name != "sqlite":
                opener = start_client(client, server, "--open", server.url())
                fine = check_lines(name + ", opened then", lines_of(opener), found) and fine
        finally:
            server.resume()
        if name in NAMED:
            named = start_client(client, server, *NAMED[name])
            fine = check_lines(name + ", name that does not resolve", lines_of(named), found,
                         may_fail=MAY_FAIL.get(name, ())) and fine
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return fine


def main():
    client, command, name = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server ends with us
    if name == "firestore" and servers.Firestore.program() is None:
        print("SKIP hang_firestore: no Firestore emulator")
        return 77
    return 0 if measure(client, command, name, []) else 1


if __name__ == "__main__":
    sys.exit(main())
