#!/usr/bin/env python3
"""`syncguard bench` changes only what it wrote itself, and removes that at the end.

    bench.py BUILD STORE

Starts a server, fills it with data of other programs (with names that a benchmark might use), runs every
group of figures with --brief, also interrupted, and compares all that is stored before and after.
"""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402

NAME = "syncguard_bench_"
GROUPS = ["handover"], ["takeover", "growth"], ["memory", "growth"]  # interrupted


class Redis(servers.Redis):
    groups = GROUPS

    def ask_cli(self, *words):
        return subprocess.run(["redis-cli", "-p", str(self.port), *words], check=True,
                              capture_output=True).stdout

    def fill(self):
        for database in range(16):
            for key in ("foreign", "bench:simple", "syncguard:bench:ours", "syncguard:grow-0000001",
                        "syncguard:fence:syncguard:bench:crowd", NAME, "syncguard_benchmark"):
                self.ask_cli("-n", str(database), "SET", key, "7")

    def snapshot(self):
        found = {}
        for database in range(16):
            keys = sorted(self.ask_cli("-n", str(database), "KEYS", "*").decode().split("\n"))
            found[database] = [(key, self.ask_cli("-n", str(database), "DUMP", key),
                                self.ask_cli("-n", str(database), "PTTL", key))
                               for key in keys if key]
        return found

    def writes(self):
        return len(self.ask_cli("--scan", "--pattern", NAME + "?*").split()) > 0


class Postgres(servers.Postgres):
    groups = GROUPS

    def fill(self):
        for name in ("foreign_rows", "grow_1", "grow_1000", "grow_1_fences", NAME,
                     "syncguard_locks", "syncguard_fence_counters"):
            self.sql("CREATE TABLE %s AS SELECT i AS key, 'x' AS lock_id FROM "
                     "generate_series(1, 50) i" % name)

    def snapshot(self):
        found = {name: self.sql("SELECT * FROM %s ORDER BY 1" % name) for name in self.tables()}
        found["everything"] = self.sql("SELECT relname FROM pg_class ORDER BY 1")
        found["vacuumed"] = self.sql("SELECT relname, last_vacuum, last_analyze "
                                     "FROM pg_stat_user_tables ORDER BY 1")
        return found

    def tables(self):
        return self.sql("SELECT relname FROM pg_stat_user_tables ORDER BY 1").split()

    def writes(self):
        return any(name.startswith(NAME) and name != NAME for name in self.tables())


class Sqlite(servers.Sqlite):
    groups = GROUPS

    def fill(self):
        for name in ("locks.db-1", "locks.db-1000", "locks.db.plain", "locks.db.plain-normal"):
            with open(os.path.join(self.folder, name), "w") as f:
                f.write("not yours")
        os.mkdir(os.path.join(self.folder, NAME))
        # The library creates its own file; another program holds a lock in it.
        subprocess.run([os.path.join(BUILD, "syncguard"), "acquire", "-b", self.url(), "--ttl",
                        "1h", "bench:ours"], check=True, stdout=subprocess.DEVNULL)

    def snapshot(self):
        found = {}
        for place, folders, files in os.walk(self.folder):
            for name in folders + files:
                path = os.path.join(place, name)
                content = open(path, "rb").read() if os.path.isfile(path) else b""
                found[path] = hashlib.sha256(content).hexdigest()
        return found

    def writes(self):
        return any(name.startswith(NAME) and name != NAME for name in os.listdir(self.folder))


class Firestore(servers.Firestore):
    groups = ["handover"], ["pair"], ["memory"]
    project = "projects/fault-run/databases/(default)/documents"

    def call(self, path, body=None):
        request = urllib.request.Request(
            "http://127.0.0.1:%d/v1/%s%s" % (self.port, self.project, path),
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer owner", "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def fill(self):
        writes = [{"update": {"name": "%s/%s/%s" % (self.project, collection, document),
                              "fields": {"x": {"stringValue": "not yours"}}}}
                  for collection in ("locks", "fence_counters", "foreign")
                  for document in ("a", "bench:ours", "fence:bench:ours")]
        self.call(":commit", {"writes": writes})

    def collections(self):
        return sorted(self.call(":listCollectionIds", {}).get("collectionIds", []))

    def snapshot(self):
        return {name: self.call("/%s?pageSize=1000" % name) for name in self.collections()}

    def writes(self):
        return any(name.startswith(NAME) for name in self.collections())


def run(store, command, into, stop=None, limit=250):
    """Runs it in the folder `into`; stop: the signal that it gets once it has written something."""
    environment = dict(os.environ, SYNCGUARD_URL=store.url(), BENCH_HELD_SECONDS="1",
                       **store.environment())
    process = subprocess.Popen([os.path.join(BUILD, command[0])] + command[1:], cwd=into,
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)
    try:
        if stop is not None:
            end = time.monotonic() + 60
            while not store.writes() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.3)
            process.send_signal(stop)
        output = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        return None, "it did not end"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


def compare(what, store, before, into, faults):
    after = store.snapshot()
    left = os.listdir(into)
    if after != before:
        faults.append(what + ": what is stored has changed")
        for name in before:
            if before[name] != after.get(name):
                print("changed: %s\n  %.1000r\n  %.1000r" % (name, before[name], after.get(name)))
        print("new:", [name for name in after if name not in before])
    if left:
        faults.append("%s: left in the working directory: %s" % (what, left))


def check(store, into, faults):
    before = store.snapshot()
    brief = ["syncguard-bench", "--brief", "--repeat", "1", "-b", store.url()]
    code, output = run(store, brief + ["all"], into)
    if code not in (0, 1):  # a missed bar does not matter here
        faults.append("all groups: exit code %s\n%s" % (code, output))
    compare("all groups", store, before, into, faults)
    # Through the command, as a user calls it; the last group is filling the store at that time.
    for number, groups in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), store.groups):
        code, output = run(store, ["syncguard", "bench"] + groups, into, stop=number)
        what = "%s during %s" % (signal.Signals(number).name, groups)
        if code != 128 + number:
            faults.append("%s: exit code %s\n%s" % (what, code, output))
        if "is left" in output:
            faults.append("%s: says that something is left\n%s" % (what, output))
        compare(what, store, before, into, faults)


def expect(what, store, into, wanted, faults):
    code, output = run(store, ["syncguard", "bench", "-b", store.url(), "pair"], into,
                       limit=60)
    if code != wanted:
        faults.append("%s: exit code %s, not %d\n%s" % (what, code, wanted, output))


def check_trouble(store, into, faults):
    """A server that hangs is reported: the plain clients would wait for it for ever."""
    if isinstance(store, Redis):
        store.ask_cli("CONFIG", "SET", "requirepass", "pw-marker-bench")
        expect("no password", store, into, 77, faults)
        store.ask_cli("-a", "pw-marker-bench", "CONFIG", "SET", "requirepass", "")
    if not isinstance(store, Sqlite):
        store.pause()
        try:
            expect("a server that hangs", store, into, 69, faults)
        finally:
            store.resume()


def main():
    kind = {"redis": Redis, "postgres": Postgres, "sqlite": Sqlite,
            "firestore": Firestore}[sys.argv[2]]
    if kind is Firestore and Firestore.program() is None:
        print("no Firestore emulator")
        return 77
    folder = servers.make_folder("syncguard-bench-test-")
    place, into = os.path.join(folder, "store"), os.path.join(folder, "into")
    os.mkdir(place)
    os.mkdir(into)
    store = kind(place)
    faults = []
    try:
        store.start()
        store.fill()
        check(store, into, faults)
        check_trouble(store, into, faults)
    finally:
        store.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(faults) or "nothing was changed, nothing is left")
    return 1 if faults else 0


BUILD = os.path.abspath(sys.argv[1])
if __name__ == "__main__":
    sys.exit(main())
