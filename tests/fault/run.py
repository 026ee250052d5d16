#!/usr/bin/env python3
"""Injects faults while clients work, and checks the histories that they recorded.

    run.py --build DIR [--stores a,b] [--faults x,y] [--seconds N] [--seed N] [--keep]
    run.py --build DIR --soak SECONDS [--stores a,b]

One cell is one store with one kind of fault, injected again and again while
several client processes take, extend and release locks. Afterwards the checker
checks the recorded history, the time to each client's first answer after each repair is
taken from it, and descriptors and threads of the clients are compared. A cell in which
a client got nothing, no client waited, few wake-ups could be checked, no child of the command
ran, nothing was broken or a fault could not be injected shows nothing, and fails. One line
per cell; exit 1 if any promise was broken that is not documented.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import servers  # noqa: E402
from proxy import Proxy  # noqa: E402

RECORD = struct.Struct("<IIIIqqqqq24siIII")
RECOVERY_MS = 2000
# How many descriptors a client may open while it works: a few connections, and one to wait on per thread.
DESCRIPTORS = 32
# A connection to PostgreSQL whose caller gave up (there are eight) has a thread for a few seconds.
THREADS = 14
# The pause of the helper between its tries: long where the store wakes waiters, so that a lost
# wake-up is noticed.
POLL_MS = {"firestore": 50, "postgres-pooled": 50}
WAITED_NS = 5000000
KILLED = 2**63 - 1
# Exit codes of a command that failed by itself: wrong usage, program not started, ended by a signal.
CRASHED = {64, 126, 127} | {128 + s for s in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE,
                                               signal.SIGSEGV, signal.SIGPIPE)}
UNAVAILABLE = 69
MARKS = ("<!-- figures -->", "<!-- end of figures -->")


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Cell:
    """The objects of a fault: the store, its clients, perhaps a proxy."""

    def __init__(self, options, store, folder):
        self.options = options
        self.store = store
        self.folder = folder
        self.proxy = None
        self.faketime = None
        self.environment = dict(os.environ)
        self.clients = []
        self.runner = None
        self.histories = []
        self.repairs = []  # when the fault was over
        self.crashes = []  # (from, to) of the times when a store lost its memory
        self.windows = []  # (from, to) of the times when the store could not work
        self.ahead = None  # (from, to) of the takeover by a server whose clock is ahead
        self.stops = []  # (pid, from, to) of clients; KILLED: for good
        self.count = 0
        self.replaced = 0
        self.died = []  # codes of clients that ended before they were killed
        self.longer = 1
        self.prefix = ""
        self.random = random.Random(options.seed)

    def history(self, index):
        """The first arguments of every kind of client: URL, prefix, file, resource, seed."""
        out = os.path.join(self.folder, "history-%d-%d" % (index, len(self.histories)))
        self.histories.append(out)
        return [self.store.url(self.proxy.port if self.proxy else None) + self.options.query,
                "fault" + self.prefix, out, os.path.join(self.folder, "resource"),
                str(self.options.seed * 1000 + len(self.histories))]

    def client(self, index):
        """The first clients use single operations, the others the lock helper."""
        left = max(0.5, self.clients_end - time.monotonic())
        poll_ms = 0 if index < self.options.single else POLL_MS.get(self.store.name, 10000)
        arguments = [os.path.join(self.options.build, "tests/fault/fault_client")]
        arguments += self.history(index)
        threads = self.options.threads if poll_ms == 0 else self.options.lock_threads
        arguments += [str(threads), str(self.options.keys), "%.1f" % left,
                      str(self.options.forget), str(poll_ms)]
        return subprocess.Popen(arguments, env=self.environment)

    def start_runner(self):
        """A client that is `syncguard run`."""
        arguments = [os.path.join(self.options.build, "tests/fault/fault_run"),
                     os.path.join(self.options.build, "syncguard")]
        arguments += self.history(self.options.clients)
        arguments += [str(self.options.keys), "%.1f" % (self.clients_end - time.monotonic())]
        return subprocess.Popen(arguments, env=self.environment)

    def start_clients(self):
        self.environment.update(self.store.environment(self.proxy.port if self.proxy else None))
        self.end = self.clients_end = time.monotonic() + self.options.seconds * self.longer
        self.clients = [self.client(i) for i in range(self.options.clients)]
        self.runner = self.start_runner()

    def injected(self):
        self.count += 1

    @contextlib.contextmanager
    def window(self):
        """While it is open the store cannot work, and no wake-up is due."""
        begun = now_ns()
        yield
        self.windows.append((begun, now_ns()))

    @contextlib.contextmanager
    def crash(self):
        """While it is open a server loses its memory."""
        begun = now_ns()
        yield
        self.crashes.append((begun, now_ns()))

    def sql(self, text):
        """The fault exists only if its statement succeeds."""
        self.store.execute(text)

    def command(self, *words, connection=None):
        reply = self.store.ask(connection, *words) if connection else self.store.command(*words)
        if not reply or reply.startswith(b"-"):
            raise RuntimeError("%s: %s" % (" ".join(words), reply.decode(errors="replace").strip()))

    def repaired(self):
        self.repairs.append(now_ns())

    def time_left(self, reserve=2.5):
        return time.monotonic() < self.end - reserve

    def pause(self, seconds):
        time.sleep(seconds)


# ---- faults: each is a function that injects until time is up -------------------------------


def none(cell):
    cell.pause(max(0.0, cell.end - time.monotonic()))


def kill_server(cell):
    while cell.time_left(4.5):  # a release two seconds before the end can be checked
        cell.pause(0.7)
        with cell.window():
            with cell.crash():
                cell.store.kill()
            cell.injected()
            cell.pause(0.2)
            cell.store.start()
        cell.repaired()
        cell.pause(1.0)


def fail_over_redis(cell):
    while cell.time_left(7):
        cell.pause(0.7)
        cell.injected()
        with cell.window():
            revive = cell.store.fail_over()
        cell.repaired()
        revive()
        cell.pause(1.5)


def move_hash_slot(cell):
    while cell.time_left(5):
        cell.pause(0.5)
        with cell.window():  # waiters poll meanwhile
            cell.store.move_hash_slot(3, 0.01)
            cell.injected()
            cell.pause(0.3)
        cell.repaired()


def fail_over_standby(cell):
    cell.pause(3)
    cell.injected()
    with cell.window():
        with cell.crash():
            cell.store.kill()
        cell.store.promote()
    cell.repaired()


# How far the clock of a server that takes over is ahead.
AHEAD_S = 5


def fail_over_redis_ahead(cell):
    cell.pause(3)
    begun = now_ns()
    with cell.window():
        cell.store.node(cell.store.port).kill()
        cell.ahead = (begun, now_ns())
        cell.injected()
        revive = cell.store.fail_over()
    cell.repaired()
    revive()


fail_over_redis_ahead.ahead = True


def fail_over_standby_ahead(cell):
    cell.pause(3)
    begun = now_ns()
    with cell.window():
        with cell.crash():
            cell.store.kill()
        cell.ahead = (begun, now_ns())
        cell.injected()
        cell.store.promote()
    cell.repaired()


fail_over_standby_ahead.ahead = True


def break_waits(cell, seconds):
    """Ends the waits of commits for the standby, by terminating and by cancelling in turn."""
    end = time.monotonic() + seconds
    calls = ["pg_terminate_backend", "pg_cancel_backend"]
    while time.monotonic() < end:
        calls.reverse()
        cell.sql("SELECT %s(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'" % calls[0])
        cell.injected()
        cell.pause(0.05)


def stop_standby(cell):
    """The standby goes and comes back; at the end it is promoted without the commits that it missed."""
    while cell.time_left(10):
        cell.pause(0.5)
        with cell.window():
            cell.store.standby.kill()
            break_waits(cell, 0.8)
            cell.store.standby.start()
        cell.repaired()
    cell.pause(0.3)
    with cell.window():
        with cell.crash():  # releases do not wait for the standby
            cell.store.standby.kill()
            break_waits(cell, 2.0)
            cell.store.kill()
        cell.store.standby.start()
        cell.store.promote()
    cell.repaired()


def stop_server(cell):
    while cell.time_left(4):
        cell.pause(0.4)
        with cell.window():
            cell.store.pause()
            cell.injected()
            cell.pause(cell.options.stop or cell.random.uniform(0.1, 1.3))
            cell.store.resume()
        cell.repaired()
        cell.pause(0.4)


def stop_holder(cell):
    while cell.time_left(3.5):
        victim = cell.random.choice(cell.clients)
        begun = now_ns()
        victim.send_signal(signal.SIGSTOP)
        cell.injected()
        cell.pause(cell.random.uniform(0.05, 2.2))
        victim.send_signal(signal.SIGCONT)
        cell.stops.append((victim.pid, begun, now_ns()))
        if cell.store.name == "sqlite":  # it may be stopped with the lock of the file
            cell.windows.append((begun, now_ns()))
        cell.pause(0.1)



def kill_client(cell):
    while cell.time_left():
        cell.pause(0.15)
        index = cell.random.randrange(len(cell.clients))
        if cell.clients[index].poll() is not None:
            cell.died.append(cell.clients[index].returncode)
        cell.clients[index].kill()
        cell.clients[index].wait()
        cell.stops.append((cell.clients[index].pid, now_ns(), KILLED))
        cell.injected()
        cell.clients[index] = cell.client(index)
        cell.replaced += 1


kill_client.disconnects = False


def with_proxy(mode, length, gap, reserve=4.5):
    def fault(cell):
        while cell.time_left(reserve):
            cell.pause(gap)
            with cell.window():
                cell.proxy.set(mode)
                cell.injected()
                cell.pause(length)
                cell.proxy.set("pass")
            cell.repaired()
        cell.proxy.set("pass")
    fault.proxy = True
    return fault


def script_flush(cell):
    while cell.time_left(1):
        cell.command("SCRIPT", "FLUSH")
        cell.injected()
        cell.pause(0.1)


script_flush.disconnects = False


def kill_connections_redis(cell):
    while cell.time_left(1):
        with cell.window():
            cell.command("CLIENT", "KILL", "TYPE", "normal")
            cell.command("CLIENT", "KILL", "TYPE", "pubsub")
        cell.injected()
        cell.repaired()
        cell.pause(0.25)


def connection_limit_redis(cell):
    with cell.store.connect() as admin:  # connects before the limit is set
        while cell.time_left(4):
            cell.pause(0.3)
            with cell.window():
                cell.command("CONFIG", "SET", "maxclients", "1", connection=admin)
                cell.command("CLIENT", "KILL", "TYPE", "normal", connection=admin)
                cell.injected()
                cell.pause(0.5)
                cell.command("CONFIG", "SET", "maxclients", "10000", connection=admin)
            cell.repaired()
            cell.pause(0.5)


def terminate_backends(cell):
    while cell.time_left(1):
        with cell.window():
            cell.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                     " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
        cell.injected()
        cell.repaired()
        cell.pause(0.3)


def connection_limit_postgres(cell):
    while cell.time_left(4):
        cell.pause(0.3)
        with cell.window():
            cell.sql("ALTER ROLE locker CONNECTION LIMIT 1; SELECT pg_terminate_backend(pid)"
                     " FROM pg_stat_activity WHERE usename = 'locker'")
            cell.injected()
            cell.pause(0.5)
            cell.sql("ALTER ROLE locker CONNECTION LIMIT -1")
        cell.repaired()
        cell.pause(0.5)


def clock_steps(seconds):
    def fault(cell):
        while cell.time_left(1):
            cell.pause(0.25)
            with open(cell.faketime, "w") as f:
                f.write("%+d\n" % seconds if cell.count % 2 == 0 else "+0\n")
            cell.injected()
    fault.clock = True
    fault.disconnects = False
    return fault


def fill_disk(cell, filler):
    with open(filler, "wb", 0) as f:
        try:
            while True:
                f.write(b"\0" * 65536)
        except OSError:
            pass
    cell.injected()
    if cell.store.name == "postgres":  # its log has preallocated space: use it up
        cell.store.sql(" ".join(["SELECT txid_current(); SELECT pg_switch_wal();"] * 60))
    cell.pause(0.5)
    os.unlink(filler)
    if cell.store.process is not None:
        if cell.store.process.poll() is None and not cell.store.answers():
            cell.store.kill()
        if cell.store.process.poll() is not None:
            cell.store.start()


def in_environment(name):
    """No fault but the one that the variable makes the clients cause themselves."""
    def fault(cell):
        none(cell)
    fault.environment = name
    return fault


def maintain(*statements):
    """Maintenance of tables while clients use them. It waits for transactions that wait for each other, and all
    clients wait for it; the server may resolve that by ending the maintenance, which is then repeated."""
    def fault(cell):
        while cell.time_left(2):
            for statement in statements:
                with cell.window():
                    try:
                        cell.sql(statement)
                    except RuntimeError as failure:
                        if "deadlock detected" not in str(failure):
                            raise
                        break
                cell.injected()
            cell.pause(0.3)
    fault.disconnects = False
    return fault


def lock_rows(cell):
    """A transaction of another program holds the rows of all locks, for less than a deadline."""
    while cell.time_left(3):
        with cell.window():
            cell.sql("BEGIN; SELECT count(*) FROM (SELECT 1 FROM syncguard_locks FOR UPDATE) AS l;"
                     " SELECT count(*) FROM (SELECT 1 FROM syncguard_fence_counters FOR SHARE) AS f;"
                     " SELECT pg_sleep(0.15); COMMIT")
        cell.injected()
        cell.pause(0.2)


lock_rows.disconnects = False


TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locker'"
FILL_QUEUE = (
    "DROP TABLE IF EXISTS queue; CREATE TABLE queue (entry text); GRANT INSERT ON queue TO PUBLIC; "
    "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE program_limit_exceeded; END $$; "
    "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION refuse(); "
    "ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO pg_notify_kept; "
    "CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS"
    " $$ BEGIN INSERT INTO public.queue VALUES ($2); END $$")
EMPTY_QUEUE = (
    "DROP FUNCTION pg_catalog.pg_notify(text, text); "
    "ALTER FUNCTION pg_catalog.pg_notify_kept(text, text) RENAME TO pg_notify")


def full_queue(cell):
    """COMMIT fails as if the queue of notifications were full. Sessions must start anew to find another function;
    at the end this also wakes the waiters, which got no notification."""
    while cell.time_left(4.5):
        cell.pause(0.5)
        with cell.window():
            cell.sql(FILL_QUEUE)
            cell.sql(TERMINATE)
            cell.injected()
            cell.pause(1.2)
            cell.sql(EMPTY_QUEUE)
            cell.sql(TERMINATE)
        cell.repaired()
        cell.pause(0.5)


def replace_files(cell):
    """The folder of the file is moved away while it is used: the locks in it do not exclude later clients."""
    while cell.time_left(4.5):
        cell.pause(1.0)
        with cell.window():
            os.rename(cell.store.folder, "%s-%d" % (cell.store.folder, cell.count))
            os.makedirs(cell.store.folder, mode=0o700, exist_ok=True)
        cell.injected()
        cell.repaired()
        cell.pause(1.0)


def full_disk(cell):
    """A server may end because of it (Redis with appendfsync always, PostgreSQL without room for
    its log): then it is started again when there is room."""
    filler = os.path.join(cell.store.folder, "filler")
    while cell.time_left(5):
        cell.pause(0.5)
        with cell.window(), cell.crash():
            fill_disk(cell, filler)
        cell.repaired()
        cell.pause(0.5)
    if os.path.exists(filler):
        os.unlink(filler)


# Larger than what the clients write in a cell: Redis keeps every change.
full_disk.small_disk = {"sqlite": "8m", "redis": "100m", "postgres": "100m"}

PROXIED = {
    "delayed-replies": with_proxy("delay", 0.8, 0.3),
    "dropped-packets": with_proxy("drop", 1.3, 0.4, 7),
    "silent-connections": with_proxy("lose", 0.2, 3.0, 6),
    "cut-replies": with_proxy("cut", 0.3, 0.3),
    "half-closed": with_proxy("half", 0.3, 0.3),
    "slow-bytes": with_proxy("slow", 0.8, 0.3),
    "twice-as-slow": with_proxy("twice", 0.8, 0.3),
}
HOLDERS = {"stopped-holder": stop_holder, "killed-clients": kill_client}
THEMSELVES = {"interrupted": in_environment("FAULT_SIGNALS"),
              "descriptors-above-1024": in_environment("FAULT_DESCRIPTORS")}
CLOCK_STEP_S = 5
CLOCKS = {"clock-plus-5s": clock_steps(CLOCK_STEP_S),
          "clock-minus-5s": clock_steps(-CLOCK_STEP_S)}

MATRIX = {
    "sqlite": dict(HOLDERS, **CLOCKS, **THEMSELVES, **{
        "no-fault": none, "full-disk": full_disk, "replaced-files": replace_files}),
    "redis": dict(HOLDERS, **CLOCKS, **THEMSELVES, **PROXIED, **{
        "no-fault": none, "killed-server": kill_server, "stopped-server": stop_server,
        "script-flush": script_flush, "client-kill": kill_connections_redis,
        "full-disk": full_disk, "connection-limit": connection_limit_redis}),
    "redis-volatile": {"killed-server": kill_server},
    "postgres": dict(HOLDERS, **CLOCKS, **THEMSELVES, **PROXIED, **{
        "no-fault": none, "killed-server": kill_server, "stopped-server": stop_server,
        "terminated-backends": terminate_backends, "full-disk": full_disk,
        "connection-limit": connection_limit_postgres, "foreign-row-locks": lock_rows,
        "full-notification-queue": full_queue,
        "vacuum-full": maintain("VACUUM FULL syncguard_locks",
                                "VACUUM FULL syncguard_fence_counters"),
        "reindex": maintain("REINDEX TABLE syncguard_locks",
                            "REINDEX TABLE CONCURRENTLY syncguard_fence_counters"),
        "alter-table": maintain("ALTER TABLE syncguard_locks ADD COLUMN note text",
                                "ALTER TABLE syncguard_locks DROP COLUMN note")}),
    "postgres-pooled-session": {"no-fault": none, "killed-pooler": kill_server},
    "postgres-pooled-transaction": {"no-fault": none, "killed-pooler": kill_server},
    "postgres-pooled-statement": {"no-fault": none},
    "redis-sentinel": {"failover": fail_over_redis, "failover-plus-5s": fail_over_redis_ahead},
    "redis-cluster": {"no-fault": none, "moving-slot": move_hash_slot},
    "redis-cluster-seed": {"failover": fail_over_redis},
    "postgres-standby": {"failover": fail_over_standby, "stopped-standby": stop_standby,
                         "failover-plus-5s": fail_over_standby_ahead},
    # The emulator keeps its data in memory: there is nothing to come back to after a kill.
    "firestore": dict(HOLDERS, **CLOCKS, **THEMSELVES, **PROXIED,
                      **{"no-fault": none, "stopped-server": stop_server}),
}
# Cells whose promise is documented as not kept: the checker must find it broken or kept, but the
# run does not fail. docs/guarantees.md says why.
DOCUMENTED = {("redis-volatile", "killed-server"), ("redis-sentinel", "failover"),
              ("redis-sentinel", "failover-plus-5s"), ("redis-cluster-seed", "failover"), ("sqlite", "replaced-files")}
# Nothing is granted while the standby is away: waiters give up with unknown outcomes, which excuse other waiters.
UNCHECKED = {("postgres-standby", "stopped-standby")}
# Violations that no store can cause: they are never excused.
NEVER = ("on_lost was called twice", "after on_lost", "on_lost was not called", "accepted a stale fence")
# Cells that run longer than the others: for the number of operations, or for slow faults.
LONGER = {("sqlite", "no-fault"): 2, ("redis", "no-fault"): 2, ("postgres", "no-fault"): 2,
          ("firestore", "no-fault"): 6, ("redis-sentinel", "failover"): 2, ("redis-sentinel", "failover-plus-5s"): 2,
          ("redis-cluster-seed", "failover"): 3, ("redis-cluster", "moving-slot"): 2,
          ("postgres", "killed-server"): 1.2, ("postgres", "full-disk"): 2, ("postgres-standby", "stopped-standby"): 1.4, ("redis", "dropped-packets"): 1.5,
          ("postgres", "dropped-packets"): 1.5, ("firestore", "dropped-packets"): 1.5}


# Stores that serve more than one cell; each cell has keys of its own.
SHARED = {}


def make_store(name, folder):
    if name != "firestore":
        return servers.make(name, folder)
    if name not in SHARED:
        SHARED[name] = servers.SharedFirestore(folder)
    return SHARED[name]


def prepare(cell, fault):
    """Prepares a store for its clients."""
    store = cell.store
    store.setup(cell.options.build)
    if store.name.startswith("postgres"):
        store.use_role("locker", "SELECT, INSERT, UPDATE, DELETE")  # a mutant deletes counters
    if getattr(fault, "proxy", False) and store.name != "sqlite":
        cell.proxy = Proxy(store.port)
    if getattr(fault, "environment", None):
        cell.environment[fault.environment] = "1"
    if getattr(fault, "clock", False):
        if not os.path.exists(servers.FAKETIME):
            sys.exit("libfaketime is missing: no clock would be stepped")
        cell.faketime = os.path.join(cell.folder, "faketime")
        with open(cell.faketime, "w") as f:
            f.write("+0\n")
        cell.environment.update(LD_PRELOAD=servers.FAKETIME, FAKETIME_TIMESTAMP_FILE=cell.faketime,
                                FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1",
                                FAKETIME_NO_CACHE="1")


def resources(pid):
    try:
        descriptors = len(os.listdir("/proc/%d/fd" % pid))
        with open("/proc/%d/status" % pid) as f:
            text = f.read()
        threads = int(re.search(r"Threads:\s+(\d+)", text).group(1))
        return descriptors, threads
    except (OSError, AttributeError):
        return None


class Seen:
    """What happened in a cell: the checker does not require that anything happened."""

    def __init__(self, cell):
        self.answers = {}  # by client: (call, return, whether it was answered) of operations
        self.unavailable = []  # (call, return) of commands that could not reach the store
        self.granted = set()  # clients by number; the last one is the command
        self.waited = False  # a helper has waited for longer than a request takes
        self.codes = set()  # of the command
        for path in cell.histories:
            if os.path.exists(path):
                with open(path, "rb") as f:
                    self.read(int(os.path.basename(path).split("-")[1]), f.read())

    def read(self, client, data):
        for r in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
            kind, outcome, flags = r[0], r[1], r[11]
            if kind < 6 and outcome < 4 and (outcome == 0 or not flags & 1):
                call = r[5] if flags & 1 else r[4]  # a waiter may wait for long
                self.answers.setdefault(client, []).append((call, r[5], outcome in (0, 1)))
            if kind == 1 and outcome == 0:
                self.granted.add(client)
                if flags & 7 == 1 and r[8] - r[4] > WAITED_NS:
                    self.waited = True
            if kind == 9 and outcome == 1:
                self.codes.add(r[10])
                if r[10] == UNAVAILABLE:
                    self.unavailable.append((r[4], r[5]))

    def recovery_ms(self, cell):
        """The longest time from a repair to a client's first answer after it."""
        windows = sorted(cell.windows + [s[1:] for s in cell.stops])
        return max((recovery_ms(a, cell.repairs, windows) for a in self.answers.values()), default=0)

    def nothing(self, cell, fault):
        """The events that did not happen, so that the cell shows nothing."""
        problems = []
        idle = [i for i in range(cell.options.clients) if i not in self.granted]
        if idle:
            problems.append("no grant for clients %s" % idle)
        if cell.options.single < cell.options.clients and not self.waited:
            problems.append("no client waited")
        # Firestore gives nothing to a client with a wrong clock, and each command is a new client.
        if cell.options.clients not in self.granted and \
                not (cell.faketime and cell.store.name == "firestore"):
            problems.append("no child of the command")
        lost = [c for c in self.unavailable if not any(
            a < c[1] and c[0] < b + RECOVERY_MS * 1000000 for a, b in cell.windows)]
        # Other clients may use up a pool of sessions.
        if lost and not (cell.faketime and cell.store.name == "firestore") and \
                cell.store.name != "postgres-pooled":
            problems.append("%d commands found no store outside of faults" % len(lost))
        if self.codes & CRASHED:
            problems.append("the command ended with %s" % sorted(self.codes & CRASHED))
        if cell.count == 0 and fault is not none and not hasattr(fault, "environment"):
            problems.append("no fault was injected")
        return problems


def working_ns(windows, begun, ended):
    """The time outside of the windows, which are in order."""
    work = ended - begun
    for a, b in windows:
        work -= max(0, min(b, ended) - max(a, begun))
        begun = max(begun, min(b, ended))
    return work


def recovery_ms(answers, repairs, windows):
    """The longest time, outside of faults, that a client tried after a repair without an answer."""
    answers = sorted(answers, key=lambda a: a[1])
    worst = 0
    at = 0
    for repair in repairs:
        while at < len(answers) and answers[at][1] < repair:
            at += 1
        after = next((i for i in range(at, len(answers)) if answers[i][2]), len(answers) - 1)
        tried = [max(repair, call) for call, _, _ in answers[at:after + 1]]
        if tried:
            worst = max(worst, working_ns(windows, min(tried), answers[after][1]) / 1e6)
    return worst


def run_cell(options, store_name, fault_name, fault):
    folder = servers.make_folder("syncguard-fault-")
    mounted = False
    try:
        place = os.path.join(folder, "store")
        os.mkdir(place)
        if getattr(fault, "small_disk", None):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + fault.small_disk[store_name],
                            "tmpfs", place], check=True)
            mounted = True
        store = make_store(store_name, place)
        store.spares_ahead_s = AHEAD_S if getattr(fault, "ahead", False) else 0
        store.start()
        cell = Cell(options, store, folder)
        if store_name in SHARED:
            cell.prefix = "-%d" % (now_ns() // 1000000)
        cell.longer = LONGER.get((store_name, fault_name), 1)
        try:
            prepare(cell, fault)
            cell.start_clients()
            time.sleep(0.8)
            before = [resources(c.pid) for c in cell.clients]
            fault(cell)
            while time.monotonic() < cell.end - 0.4:
                time.sleep(0.05)
            after = [resources(c.pid) for c in cell.clients]
            codes = [c.wait(30) for c in cell.clients + [cell.runner]]
        finally:
            for client in cell.clients + [cell.runner]:
                if client is not None and client.poll() is None:
                    client.send_signal(signal.SIGCONT)
                    client.kill()
                    client.wait()
            if cell.proxy:
                cell.proxy.close()
            store.stop()
        return check_cell(options, cell, store_name, fault_name, fault, before, after, codes)
    finally:
        if mounted:
            subprocess.run(["umount", folder + "/store"], check=False)
        if options.keep:
            print("kept", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def check_cell(options, cell, store_name, fault_name, fault, before, after, codes):
    slack = "25" if store_name == "firestore" else "5"
    files = [h for h in cell.histories if os.path.exists(h)]
    # Where connections break, a release may be sent again and then find nothing: that is OK.
    breaks = cell.count > 0 and getattr(fault, "disconnects", True)
    resends = ["--resends"] if breaks and cell.store.name != "sqlite" else []
    # A crash may take back a release that was not on the disk yet (its lock then expires). Redis
    # with appendfsync=always has no such excuse, and a pooler has no memory.
    crashes = [word for begun, ended in cell.crashes
               for word in ("--crash-ns", str(begun), str(ended))
               if store_name in ("postgres", "postgres-standby")]
    # Firestore has no clock to ask: the answers of a client with a wrong clock are not checked.
    # The effects of its operations on locks are checked.
    stepped = (["--stepped-ms", str(CLOCK_STEP_S * 1000)]
               if store_name == "firestore" and cell.faketime else [])
    windows = [word for begun, ended in cell.windows
               for word in ("--fault-ns", str(begun), str(ended))]
    # By the clock of the new server the locks end sooner.
    ahead = ["--ahead-ns", *map(str, cell.ahead), str(AHEAD_S * 1000)] if cell.ahead else []
    stops = [str(word) for stop in cell.stops for word in ("--stopped-ns", *stop)]
    checked = subprocess.run([os.path.join(options.build, "tests/fault/fault_check"), "--slack-ms",
                              slack] + stepped + ahead + crashes + resends + windows + stops + files,
                             check=False, capture_output=True, text=True)
    problems = []
    if checked.returncode != 0:
        problems.append("promises broken" if checked.returncode == 1 else "history unreadable")
    if any(codes) or cell.died:
        problems.append("a client ended with %s" % (cell.died + [c for c in codes if c]))
    seen = Seen(cell)
    problems += seen.nothing(cell, fault)
    recovered = seen.recovery_ms(cell) if cell.repairs else 0
    if recovered > RECOVERY_MS:
        problems.append("no recovery within 2 s")
    if cell.replaced == 0:
        for b, a in zip(before, after):
            if b and a and (a[0] > b[0] + DESCRIPTORS or a[1] > b[1] + THREADS):
                problems.append("descriptors/threads grew from %s to %s" % (b, a))
    text = checked.stdout.strip().splitlines()
    found = re.search(r"(\d+) operations, (\d+) grants, (\d+) by the helper.*, (\d+) wake-ups",
                      text[-1]) if text else None
    operations, grants, helper, wakes = [int(n) for n in found.groups()] if found else (0, 0, 0, 0)
    if wakes < options.wake_ups and checked.returncode == 0 and cell.store.name not in POLL_MS and \
            (store_name, fault_name) not in UNCHECKED:
        problems.append("only %d wake-ups checked" % wakes)
    documented = (store_name, fault_name) in DOCUMENTED and problems in ([], ["promises broken"]) \
        and not any(what in line for line in text for what in NEVER)
    verdict = "kept" if not problems else ("as documented" if documented else "BROKEN")
    options.rows.append((store_name, fault_name, verdict, operations, helper, grants, wakes, cell.count,
                         "%d ms" % recovered if cell.repairs else "-"))
    print("%-16s %-20s %-13s %8d operations %7d by helper %7d grants %6d wake-ups %4d faults  recovery %s%s" %
          (store_name, fault_name, verdict, operations, helper, grants, wakes, cell.count,
           "%d ms" % recovered if cell.repairs else "-",
           "" if not problems else "  (" + "; ".join(problems) + ")"), flush=True)
    if cell.ahead:
        print("    " + next((line for line in text if "overlapped" in line), "overlaps were not counted"), flush=True)
    if problems and not documented:
        print("\n".join("    " + line for line in text[:12]), flush=True)
        print("    histories: " + keep_histories(options, files, store_name, fault_name), flush=True)
    return not problems or documented, operations, helper, cell.count


def keep_histories(options, files, store_name, fault_name):
    """Copies the histories of a broken cell to a folder that outlasts the run."""
    folder = os.path.join(options.build, "fault-broken", store_name + "-" + fault_name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for file in files:
        shutil.copy(file, folder)
    return folder


def soak(cell):
    """Any of the store's faults, one after the other, for as long as it lasts."""
    choices = SOAK[cell.store.name]
    whole = cell.end
    while time.monotonic() < whole - 6:
        cell.end = min(whole, time.monotonic() + cell.random.uniform(5, 8))
        cell.random.choice(choices)(cell)
    cell.end = whole


soak.proxy = True
PROXY_FAULTS = list(PROXIED.values())
SOAK = {
    "sqlite": [stop_holder, kill_client],
    "redis": PROXY_FAULTS + [stop_holder, kill_client, kill_server, stop_server, script_flush,
                             kill_connections_redis],
    "postgres": PROXY_FAULTS + [stop_holder, kill_client, kill_server, stop_server,
                                terminate_backends],
    "firestore": PROXY_FAULTS + [stop_holder, kill_client, stop_server],
}


def run_soak(options):
    """All stores in turn, again and again, with another seed each time."""
    end = time.monotonic() + options.soak
    good, sums, cells = True, [0, 0, 0], 0
    names = [s for s in options.stores.split(",") if s in SOAK]
    options.seconds = max(8.0, min(40.0, options.soak / len(names) - 5))
    while cells < len(names) or time.monotonic() < end - options.seconds:
        ok, *figures = run_cell(options, names[cells % len(names)], "soak", soak)
        options.seed += 1
        good = good and ok
        sums = [a + b for a, b in zip(sums, figures)]
        cells += 1
    return conclude(cells, sums, good)


def conclude(cells, sums, good):
    print("%d cells, %d operations, %d of them by the helper, %d faults: %s" %
          (cells, *sums, "no promise broken" if good else "BROKEN"))
    return 0 if good else 1


def record(path, rows):
    """Writes the figures of a run between the marks in a page."""
    lines = ["Matrix of %s, %s, %d cores:" % (time.strftime("%Y-%m-%d"), os.uname().machine,
                                              os.cpu_count()), "",
             "| store | fault | result | operations | by lock handles | grants | wake-ups checked |"
             " faults | longest recovery |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    sums = {}
    for row in rows:
        lines.append("| %s | %s | %s | %s | %s | %s | %s | %d | %s |" % (
            *row[:3], *["{:,}".format(n) for n in row[3:7]], *row[7:]))
        old = sums.get(row[0], (0, 0, 0, 0))
        sums[row[0]] = (old[0] + 1, old[1] + row[3], old[2] + row[4], old[3] + row[7])
    lines += ["", "| store | histories | operations | by lock handles | faults |",
              "| --- | ---: | ---: | ---: | ---: |"]
    sums["all"] = tuple(sum(column) for column in zip(*sums.values()))
    for name, (cells, operations, helper, faults) in sums.items():
        lines.append("| %s | %d | %s | %s | %d |" % (
            name, cells, "{:,}".format(operations), "{:,}".format(helper), faults))
    with open(path, encoding="utf-8") as f:
        head, rest = f.read().split(MARKS[0] + "\n", 1)
        tail = rest.split(MARKS[1], 1)[1]
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + MARKS[0] + "\n\n" + "\n".join(lines) + "\n\n" + MARKS[1] + tail)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--stores", default="sqlite,redis,redis-volatile,redis-sentinel,"
                        "redis-cluster,redis-cluster-seed,postgres,"
                        "postgres-standby,postgres-pooled-session,postgres-pooled-transaction,"
                        "postgres-pooled-statement,firestore")
    parser.add_argument("--faults", default="")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--single", type=int, default=2,
                        help="how many of them use single operations")
    parser.add_argument("--threads", type=int, default=3, help="of a client with single operations")
    parser.add_argument("--lock-threads", type=int, default=8, help="of a client with lock handles")
    parser.add_argument("--keys", type=int, default=8)
    parser.add_argument("--forget", type=int, default=400)
    parser.add_argument("--stop", type=float, default=0, metavar="SECONDS",
                        help="for how long stopped-server stops it; 0: at random")
    parser.add_argument("--wake-ups", type=int, default=3,
                        help="how many must be checked in a cell of a store that wakes waiters")
    parser.add_argument("--query", default="", help="options for the URL of the store")
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS",
                        help="random faults on all stores in turn, instead of the matrix")
    parser.add_argument("--record", default="", metavar="FILE",
                        help="write the figures into this page, between its marks")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    options.rows = []
    return options


def main():
    options = parse()
    wanted = [f for f in options.faults.split(",") if f]
    print("seed %d" % options.seed, flush=True)
    if options.soak:
        return run_soak(options)
    good, total, cells = True, [0, 0, 0], 0
    per_store = {}
    known = {f for store_name in options.stores.split(",") for f in MATRIX[store_name]}
    if set(wanted) - known:
        sys.exit("no such cells: %s" % ", ".join(sorted(set(wanted) - known)))
    for store_name in options.stores.split(","):
        for fault_name, fault in MATRIX[store_name].items():
            if wanted and fault_name not in wanted:
                continue
            try:
                ok, *figures = run_cell(options, store_name, fault_name, fault)
            except (OSError, RuntimeError, subprocess.SubprocessError) as failure:
                print("%-16s %-20s NOT RUN: %s" % (store_name, fault_name, failure), flush=True)
                ok, figures = False, [0, 0, 0]
            good = good and ok
            cells += 1
            total = [a + b for a, b in zip(total, figures)]
            sums = per_store.setdefault(store_name, [0, 0, 0, 0])
            per_store[store_name] = [a + b for a, b in zip(sums, [1] + figures)]
    if options.record:
        record(options.record, options.rows)
    for store_name, sums in per_store.items():
        print("%-16s %3d cells %9d operations %9d by the helper %5d faults" % (store_name, *sums))
    return conclude(cells, total, good)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers
    sys.exit(main())
