#!/usr/bin/env python3
"""Forged histories: each check of the checker finds the violation that it is there for, and no other.

    forged.py --build DIR

A mutant shows that some check finds a fault of the library; here each check has a history that it must
find broken, and most have one with a small difference, which the checker must accept.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import run  # noqa: E402

ACQUIRE, RELEASE, EXTEND, IS_LOCKED, LOOKUP, WRITE, HELD, LOST, CHILD = range(1, 10)
OK, NO, UNKNOWN, FAILED, PENDING = range(5)
HELPER, RENEWED, COMMAND, RETRIES = 1, 2, 4, 8
MARK = 0x53474832
START_MS = 1000000


def ns(ms):
    return int((START_MS + ms) * 1000000)


def rec(kind, call, back=None, outcome=OK, thread=1, ttl=0, fence=0, sent=None, lock="", status=0, flags=0, wait=0):
    """One record; times in milliseconds."""
    return run.RECORD.pack(kind, outcome, 0, thread, ns(call), ns(call + 1 if back is None else back), ttl, fence,
                           0 if sent is None else ns(sent), lock.encode(), status, flags, wait, MARK)


def grant(lock, fence, call, back=None, ttl=400, **more):
    return rec(ACQUIRE, call, back, ttl=ttl, fence=fence, lock=lock, thread=fence, **more)


def held(lock, at, end, outcome=OK, status=0):
    return rec(HELD, at, at, outcome, sent=end, lock=lock, status=status)


def release(lock, call, outcome=OK):
    return rec(RELEASE, call, outcome=outcome, lock=lock)


def lost(lock, at):
    return rec(LOST, at, at, lock=lock, status=2)


def fault(first, last):
    return ["--fault-ns", str(ns(first)), str(ns(last))]


def crash(at):
    return ["--crash-ns", str(ns(at - 10)), str(ns(at))]


def ahead(first, last, by=500):
    """Another server took over."""
    return ["--ahead-ns", str(ns(first)), str(ns(last)), str(by)]


def stopped(first, last, pid=0):
    return ["--stopped-ns", str(pid), str(ns(first)), str(ns(last))]


def keeper(**more):
    return grant("a", 1, 0, sent=0, flags=HELPER | RENEWED, **more)


def waiter(back, status=0):
    """Waits for the key that "a" holds."""
    if status:
        return rec(ACQUIRE, 100, back, UNKNOWN, thread=9, ttl=6000, sent=back - 1100, status=status, flags=HELPER)
    return grant("b", 2, 100, back, sent=back - 1, flags=HELPER, wait=6000)


def patient(flags=RETRIES):
    """Is granted the key after 500 ms, perhaps not with the first attempt."""
    return grant("b", 2, 100, 601, sent=600, flags=HELPER | flags)


def unknown(call, back):
    return rec(ACQUIRE, call, back, UNKNOWN, thread=7, ttl=400, status=-1)


def command(lock, fence, call, back, ended=None):
    """The grant of a command; if it ends, also its end and a child until 50 ms before."""
    return [grant(lock, fence, call, back, ttl=1500, flags=7), *(() if ended is None else (
        *children(lock, back, ended - 50), rec(CHILD, call, ended, NO, thread=fence)))]


def children(lock, first, last):
    return [rec(CHILD, at, at, lock=lock) for at in range(first, last, 50)]


ORDER = "no order of the operations explains this answer"
TWO = "two grants were held at the same time"
BELIEF = "a holder believed in its lock after another was granted it"
LATE = "on_lost came after the lease had ended in the store"
SILENT = "a lock was lost and on_lost was not called"
FREE = "a key stayed free while a client waited for it"
CHILDREN = "a child of the command outlived its lock"

STOPPED = stopped(200, 1500)

# Name, the checker's arguments, the records, the message that it must print (None: none).
CASES = [
    ("a grant after a release", [], [grant("a", 1, 0), release("a", 10), grant("b", 2, 20)], None),
    ("a grant after the expiry", [], [grant("a", 1, 0), grant("b", 2, 1400)], None),
    ("a grant before the expiry", [], [grant("a", 1, 0), grant("b", 2, 1380)], TWO),
    ("a grant before the end of an extend", [],
     [grant("a", 1, 0), rec(EXTEND, 300, ttl=400, lock="a"), grant("b", 2, 1600)], TWO),
    ("a grant after an extend that shortens", [],
     [grant("a", 1, 0), rec(EXTEND, 100, ttl=100, lock="a"), grant("b", 2, 1210)], None),
    ("a fence twice", [], [grant("a", 1, 0), release("a", 10), grant("b", 1, 20)], "a fence was given twice"),
    ("a fence that falls", [], [grant("a", 2, 0), release("a", 10), grant("b", 1, 20)],
     "a later grant has a lower fence"),
    ("fences that fall behind a long call", [],
     [grant("a", 3, 5), release("a", 7), grant("b", 2, 0, 40), release("b", 41), grant("c", 1, 30)], ORDER),
    ("a stale write", [], [rec(WRITE, 0, fence=2), rec(WRITE, 10, fence=1)], "the resource accepted a stale fence"),
    ("locked without a holder", [], [grant("a", 1, 0), release("a", 10), rec(IS_LOCKED, 20)], ORDER),
    ("locked, perhaps by an unknown acquire", [],
     [grant("a", 1, 0), release("a", 10), rec(ACQUIRE, 15, outcome=UNKNOWN, ttl=400, status=-1, thread=7),
      rec(IS_LOCKED, 20)], None),
    ("free while it is held", [], [grant("a", 1, 0), rec(IS_LOCKED, 20, outcome=NO)], ORDER),
    ("another's lock found", [], [grant("a", 1, 0), release("a", 10), grant("b", 2, 20), rec(LOOKUP, 30, lock="a")],
     ORDER),
    ("a second release", [], [grant("a", 1, 0), release("a", 10), release("a", 20)], ORDER),
    ("a second release, sent again", ["--resends", *fault(15, 18)], [grant("a", 1, 0), release("a", 10), release("a", 20)], None),
    ("a second release, sent again without a fault", ["--resends"],
     [grant("a", 1, 0), release("a", 10), release("a", 20)], ORDER),
    ("a second release of a process that was stopped", ["--resends", *stopped(15, 18)],
     [grant("a", 1, 0), release("a", 10), release("a", 20)], None),
    ("a second release beside a stopped process", ["--resends", *stopped(15, 18, 5)],
     [grant("a", 1, 0), release("a", 10), release("a", 20)], ORDER),
    ("a second release, sent again long after a fault", ["--resends", *fault(15, 18)],
     [grant("a", 1, 0), release("a", 10), release("a", 2600)], ORDER),
    ("a second extend, sent again", ["--resends"],
     [grant("a", 1, 0), release("a", 10), rec(EXTEND, 20, ttl=400, lock="a")], ORDER),
    ("a second release, sent again, that frees another's lock", ["--resends", *fault(15, 18)],
     [grant("a", 1, 0), release("a", 10), grant("b", 2, 12), release("a", 20), grant("c", 3, 30)], TWO),
    ("a second release, sent again, after which another's lock is free", ["--resends", *fault(15, 18)],
     [grant("a", 1, 0), release("a", 10), grant("b", 2, 12), release("a", 20), rec(IS_LOCKED, 30, outcome=NO)], ORDER),
    ("an extend of a dead lock", [], [grant("a", 1, 0), rec(EXTEND, 1410, ttl=400, lock="a")], ORDER),

    ("the id of an attempt that failed", fault(150, 550), [patient(), rec(LOOKUP, 560, lock="x")], None),
    ("the id of an attempt that failed, late", fault(150, 550), [patient(), release("b", 700), rec(LOOKUP, 8900, lock="x")],
     None),
    ("the id of an attempt that failed, too late", fault(150, 550),
     [patient(), release("b", 700), rec(LOOKUP, 9100, lock="x")], ORDER),
    ("the id of an attempt that failed beside its waiter's", fault(150, 550),
     [patient(), rec(LOOKUP, 620, lock="b"), rec(LOOKUP, 640, lock="x")], ORDER),
    ("locked by an attempt that failed", fault(150, 550), [patient(), rec(IS_LOCKED, 560)], None),
    ("the id of a waiter that does not go on", fault(150, 550), [patient(0), rec(LOOKUP, 560, lock="x")], ORDER),
    ("the id of an attempt, long after a fault", fault(-3500, -3000), [patient(), rec(LOOKUP, 560, lock="x")], ORDER),
    ("the id of an attempt before the waiter came", fault(50, 550), [patient(), rec(LOOKUP, 60, lock="x")], ORDER),
    ("the id of an attempt without a fault", [], [patient(), rec(LOOKUP, 560, lock="x")], ORDER),
    ("the id of an attempt that had no time", ["--resends"],
     [grant("b", 2, 100, 1201, sent=1200, flags=HELPER | RETRIES), rec(LOOKUP, 1100, lock="x")], None),
    ("a grant beside an attempt that failed", fault(150, 550), [grant("a", 1, 120), patient()], TWO),
    ("a release that a crash takes back", [*crash(500)],
     [grant("a", 1, 0), release("a", 10), rec(IS_LOCKED, 600)], None),
    ("a release after a crash", crash(500), [grant("a", 1, 0), release("a", 510), rec(IS_LOCKED, 600)], ORDER),
    ("a release long before a crash", [*crash(1200)],
     [grant("a", 1, 0), release("a", 10), rec(IS_LOCKED, 600)], ORDER),
    ("a grant that a crash takes back", [*crash(500)], [grant("a", 1, 0), grant("b", 2, 600)], TWO),
    ("two grants with stepped clocks", ["--stepped-ms", "5000"], [grant("a", 1, 0), grant("b", 2, 600)], TWO),

    ("a belief before the next grant", [], [grant("a", 1, 0, flags=HELPER, sent=0), held("a", 350, 400),
                                            grant("b", 2, 1450)], None),
    ("a belief after the next grant", [], [grant("a", 1, 0, flags=HELPER, sent=0), held("a", 1500, 1600),
                                           grant("b", 2, 1450)], BELIEF),
    ("a stopped holder's belief", STOPPED, [grant("a", 1, 0, flags=HELPER, sent=0), held("a", 1500, 1600),
                                                 grant("b", 2, 1450)], BELIEF),
    ("a grant before the expiry by the former server's clock", ahead(600, 650), [grant("a", 1, 0), grant("b", 2, 900)],
     None),
    ("a grant before the expiry by the new server's clock", ahead(600, 650), [grant("a", 1, 0), grant("b", 2, 890)], TWO),
    ("a grant before the other server", ahead(1000, 1050), [grant("a", 1, 0), grant("b", 2, 990)], TWO),
    ("a grant as soon as the other server is there", ahead(1000, 1050), [grant("a", 1, 0), grant("b", 2, 1000)], None),
    ("a grant before the expiry of one by the new server", ahead(-100, -50), [grant("a", 1, 0), grant("b", 2, 1380)], TWO),
    ("an extend by the former server", ahead(600, 650),
     [grant("a", 1, 0), rec(EXTEND, 500, ttl=400, lock="a"), grant("b", 2, 1400), rec(IS_LOCKED, 1410)], None),
    ("an extend by the new server", ahead(600, 650),
     [grant("a", 1, 0), rec(EXTEND, 700, ttl=400, lock="a"), grant("b", 2, 2000)], TWO),
    ("absent before the expiry by the former server's clock", ahead(600, 650),
     [grant("a", 1, 0), rec(IS_LOCKED, 900, outcome=NO), rec(EXTEND, 910, outcome=NO, ttl=400, lock="a")], None),
    ("absent before the other server", ahead(600, 650), [grant("a", 1, 0), rec(IS_LOCKED, 590, outcome=NO)], ORDER),
    ("a belief beside a grant of the new server", ahead(600, 650, 3000),
     [keeper(ttl=3000), held("a", 500, 3000), grant("b", 2, 1100, 1101, ttl=6000), held("a", 2900, 3000), lost("a", 3001)],
     None),
    ("a belief long after a grant of the new server", ahead(600, 650, 3000),
     [keeper(ttl=5000), held("a", 500, 5000), grant("b", 2, 3100, 3101, ttl=6000), held("a", 5200, 5300), lost("a", 5301)],
     BELIEF),
    ("a belief in a lock that the new server renewed", ahead(600, 650, 3000),
     [keeper(ttl=3000), held("a", 500, 3000), held("a", 1000, 3660), grant("b", 2, 1100, 1101, ttl=6000),
      held("a", 1200, 3660), lost("a", 1201)], BELIEF),
    ("a belief beside a grant before the other server", ahead(600, 650, 3000),
     [keeper(ttl=3000), grant("b", 2, 500, 501, ttl=6000), held("a", 550, 3000), lost("a", 601)], BELIEF),

    ("on_lost", [], [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 402), release("a", 403, NO)],
     None),
    ("locked after the last renewal of a lost lock", [], [keeper(), held("a", 10, 400), lost("a", 402),
                                                          rec(IS_LOCKED, 2400)], None),
    ("locked long after the last renewal of a lost lock", [], [keeper(), held("a", 10, 400), lost("a", 402),
                                                               rec(IS_LOCKED, 2430)], ORDER),
    ("locked after a fault in which a renewal was sent", fault(380, 1300),
     [keeper(), held("a", 10, 400), lost("a", 402), rec(IS_LOCKED, 3200)], None),
    ("locked long after a fault in which a renewal was sent", fault(380, 1300),
     [keeper(), held("a", 10, 400), lost("a", 402), rec(IS_LOCKED, 3210)], ORDER),
    ("on_lost twice", [], [keeper(), held("a", 10, 400), lost("a", 402), lost("a", 404), release("a", 405, NO)],
     "on_lost was called twice"),
    ("no on_lost", [], [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), release("a", 450, NO)], SILENT),
    ("late on_lost", [], [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1402),
                          release("a", 1403, NO)], LATE),
    ("a grant after the lease of a holder that was stopped in its acquire", stopped(5, 1800),
     [grant("a", 1, 0, 1800, sent=0, flags=HELPER | RENEWED), grant("b", 2, 1500), release("b", 1510),
      lost("a", 1801), release("a", 1802, NO)], None),
    ("a grant within the lease of a holder that was stopped in its acquire", stopped(5, 1300),
     [grant("a", 1, 0, 1300, sent=0, flags=HELPER | RENEWED), grant("b", 2, 1250), release("b", 1260),
      lost("a", 1301), release("a", 1302, NO)], ORDER),
    ("late on_lost of a stopped holder", STOPPED,
     [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1402), release("a", 1403, NO)], None),
    ("late on_lost beside a stopped process", stopped(200, 1500, 5),
     [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1402), release("a", 1403, NO)], LATE),
    ("late on_lost of a process that was stopped before", stopped(50, 380),
     [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1402), release("a", 1403, NO)], LATE),
    ("on_lost long after the process went on", stopped(200, 600),
     [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1602), release("a", 1603, NO)], LATE),
    ("on_lost soon after the process went on", stopped(200, 600),
     [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1590), release("a", 1603, NO)], None),
    ("late on_lost during a fault of the store", fault(200, 1500),
     [keeper(), held("a", 10, 400), held("a", 401, 0, NO, 2), lost("a", 1402), release("a", 1403, NO)], LATE),
    ("a belief after on_lost", [], [keeper(), held("a", 10, 400), lost("a", 20), held("a", 30, 400),
                                    release("a", 40, NO)], "a holder believed in its lock after on_lost"),

    ("a waiter that is woken", [], [keeper(ttl=6000), release("a", 200), waiter(2100)], None),
    ("a waiter that is woken late", [], [keeper(ttl=6000), release("a", 200), waiter(2300)], FREE),
    ("a waiter that is not woken", [], [keeper(ttl=6000), release("a", 200), waiter(6100, -5)], FREE),
    ("a waiter during a fault", ["--fault-ns", str(ns(150)), str(ns(1150))],
     [keeper(ttl=6000), release("a", 200), waiter(3100)], None),
    ("a waiter long after a fault", ["--fault-ns", str(ns(150)), str(ns(1150))],
     [keeper(ttl=6000), release("a", 200), waiter(3300)], FREE),

    ("a waiter between faults", fault(1000, 1100) + fault(2300, 2320),
     [keeper(ttl=6000), release("a", 200), waiter(2290)], None),
    ("a waiter that is woken late between faults", fault(1000, 1100) + fault(2500, 2600),
     [keeper(ttl=6000), release("a", 200), waiter(2350)], FREE),
    ("a waiter that was stopped", stopped(300, 800), [keeper(ttl=6000), release("a", 200), waiter(2600)], None),
    ("a waiter beside a stopped process", stopped(300, 800, 5),
     [keeper(ttl=6000), release("a", 200), waiter(2600)], FREE),
    ("a waiter beside an unknown acquire", [], [keeper(ttl=6000), unknown(150, 160), release("a", 200), waiter(2300)],
     None),
    ("a waiter after an unknown acquire", [],
     [keeper(ttl=6000), unknown(-1000, -990), release("a", 200), waiter(2300)], FREE),
    ("a waiter beside an acquire without an answer", [],
     [rec(ACQUIRE, -3000, -3000, PENDING, thread=1792, ttl=400), keeper(ttl=6000), release("a", 200), waiter(2300)],
     None),
    ("a waiter after an acquire of a killed client", ["--stopped-ns", "7", str(ns(-1000)), str(run.KILLED)],
     [rec(ACQUIRE, -3000, -3000, PENDING, thread=1792, ttl=400), keeper(ttl=6000), release("a", 200), waiter(2300)],
     FREE),
    ("an acquire of a free key", [],
     [keeper(), release("a", 200), grant("b", 2, 500, 2450, sent=2449, flags=HELPER)], None),
    ("a late acquire of a free key", [],
     [keeper(), release("a", 200), grant("b", 2, 500, 2550, sent=2549, flags=HELPER)], FREE),
    ("one wake-up to count", [], [keeper(ttl=6000), release("a", 200), waiter(300), rec(WRITE, 9000, fence=2)], 1),
    ("a wake-up that no waiter could miss", [],
     [keeper(ttl=6000), release("a", 200), unknown(1000, 1010), waiter(300), rec(WRITE, 9000, fence=2)], 0),

    ("commands, one slow", [], [*command("a", 1, 0, 10, 150), *command("b", 2, 200, 2600, 2700),
                                *command("c", 3, 2800, 2900)], None),
    ("commands that do not release", [], [*command("a", 1, 0, 10, 150), *command("b", 2, 200, 2600, 2700),
                                          *command("c", 3, 2800, 5200)],
     "a command ended and did not release its lock"),
    ("a waiter that a command wakes", [], [*command("a", 1, 0, 10, 150), waiter(2100)], None),
    ("a waiter that a command does not wake", [], [*command("a", 1, 0, 10, 150), waiter(2200)],
     "a command ended and did not release its lock"),
    ("locked after the end of a command", [], [*command("a", 1, 0, 10, 150), rec(IS_LOCKED, 300)], ORDER),
    ("locked after a fault at the end of a command", fault(100, 120),
     [*command("a", 1, 0, 10, 150), rec(IS_LOCKED, 300)], None),
    ("a child within the grace period", [], [grant("a", 1, 0, ttl=1500, flags=7), *children("a", 10, 3300),
                                             grant("b", 2, 2600)], None),
    ("a child beyond it", [], [grant("a", 1, 0, ttl=1500, flags=7), *children("a", 10, 3500), grant("b", 2, 2600)],
     CHILDREN),
    ("a child that outlives the lock of a stopped holder's cell", STOPPED,
     [grant("a", 1, 0, ttl=1500, flags=7), *children("a", 10, 3500), grant("b", 2, 2600)], CHILDREN),
    ("a child of a command that ended well beside another's grant", [],
     [grant("a", 1, 0, ttl=1500, flags=7), *children("a", 10, 700), rec(CHILD, 0, 750, NO), grant("b", 2, 100)],
     CHILDREN),
    ("a command that was killed before its child began", [],
     [rec(ACQUIRE, 0, 0, 4, thread=5, ttl=1500, flags=7), rec(CHILD, 0, 200, NO, thread=5, status=137),
      rec(IS_LOCKED, 300)], None),
    ("on_lost after a release", [], [keeper(), held("a", 10, 400), release("a", 20), lost("a", 300)],
     "on_lost was called after the release"),
    ("a belief that comes back", [], [keeper(), held("a", 10, 400), held("a", 20, 0, NO, 2), held("a", 30, 400),
                                      lost("a", 40), release("a", 41, NO)],
     "a holder believed again in a lock that was lost"),
    ("a waiter that is not woken and gives up", [],
     [keeper(ttl=6000), release("a", 200), rec(ACQUIRE, 100, 6100, UNKNOWN, thread=9, ttl=6000, status=-5,
                                               flags=HELPER)], FREE),
    ("a command's grant inside another's", [], [grant("a", 1, 0, ttl=1500), grant("b", 2, 100, flags=7)], TWO),
]


def run_checker(checker, arguments, records, folder):
    path = os.path.join(folder, "history")
    with open(path, "wb") as f:
        f.write(b"".join(records))
    ran = subprocess.run([checker, "--slack-ms", "5", *arguments, path], check=False, capture_output=True, text=True)
    counted = re.search(r"(\d+) wake-ups checked", ran.stdout)
    return ran.returncode, re.findall(r"BROKEN key \d+: (.*)", ran.stdout), int(counted.group(1)) if counted else None


# Of one client: its operations (call, return, answered), repairs, windows of faults, the longest recovery; in ms.
RECOVERIES = [
    ("answers at once", [(0, 1, True), (100, 101, True)], [50], [(10, 50)], 1),
    ("answers late", [(0, 1, True), (60, 1060, False), (1060, 2160, True)], [50], [(10, 50)], 2100),
    ("never answers", [(0, 1, True), (60, 1060, False), (1060, 3060, False)], [50], [(10, 50)], 3000),
    ("was in the middle of a request", [(40, 2150, False)], [50], [(10, 50)], 2100),
    ("answers between the next faults", [(60, 1060, False), (1060, 3060, True)], [50, 2000], [(10, 50), (1000, 2000)],
     2000),
    ("did not try", [(0, 1, True)], [50], [(10, 50)], 0),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    checker = os.path.join(os.path.abspath(parser.parse_args().build), "tests/fault/fault_check")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="syncguard-forged-") as folder:
        for what, arguments, records, expected in CASES:
            code, said, counted = run_checker(checker, arguments, records, folder)
            if isinstance(expected, int):
                right = code == 0 and counted == expected
            else:
                right = code == (1 if expected else 0) and (not expected or expected in said)
            if not right:
                wrong += 1
                print("%s: expected %s, got %s (%d)" % (what, expected or "nothing", said or "nothing", code))
        if run_checker(checker, [], [], folder)[0] != 2:
            wrong += 1
            print("an empty history was accepted")
    for what, answers, repairs, windows, expected in RECOVERIES:
        took = run.recovery_ms([(a * 10**6, b * 10**6, ok) for a, b, ok in answers], [r * 10**6 for r in repairs],
                               [(a * 10**6, b * 10**6) for a, b in windows])
        if took != expected:
            wrong += 1
            print("a client that %s: expected %d ms, heard %d ms" % (what, expected, took))
    print("%d histories, %d with a wrong result" % (len(CASES) + 1 + len(RECOVERIES), wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
