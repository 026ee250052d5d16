#!/usr/bin/env python3
"""`syncguard doctor` finds the problems that it documents, none on a healthy store, and changes nothing.

    doctor.py BUILD STORE

Each case makes one condition true and then reverts it. The rights of a Redis user and a PostgreSQL
role are revoked one by one in tests/redis/test_rights.c and tests/postgres/test_rights.c.
"""
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402
from servers.certificates import certificates  # noqa: E402
from servers.postgres import program  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
COMMAND = os.path.join(BUILD, "syncguard")
SKEWED = os.path.join(os.path.dirname(servers.__file__), "skewed.sh")
SEVERITIES = ["fine", "warn", "block"]
FAULTS = []
USUAL = set()  # text of findings that all files on this machine have


def all_findings(url, *before):
    """before: words before the command."""
    done = subprocess.run([*before, COMMAND, "doctor", "--json", "-b", url], capture_output=True,
                          text=True, check=False, timeout=120)
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    worst = max([SEVERITIES.index(f["severity"]) for f in findings], default=None)
    if done.returncode != worst:
        FAULTS.append("%s: exit code %d\n%s%s" % (url, done.returncode, done.stdout, done.stderr))
    for f in findings:
        bad = f["severity"] != "fine"
        if sorted(f) != ["change", "severity", "text", "topic", "why"] or not f["text"] \
                or bool(f["why"]) != bad or bool(f["change"]) != bad:
            FAULTS.append("not in the form of a finding: %s" % f)
    return findings


def diagnose(url, *before):
    """The findings that are not fine."""
    return [f for f in all_findings(url, *before)
            if f["severity"] != "fine" and f["text"] not in USUAL]


def expect(what, url, *wanted, before=(), text=""):
    """wanted: "severity topic" of exactly the findings that are not fine."""
    found = diagnose(url, *before)
    got = sorted({"%s %s" % (f["severity"], f["topic"]) for f in found})
    if got != sorted(wanted):
        FAULTS.append("%s: %s instead of %s" % (what, found, wanted))
    elif text and not any(text in f["text"] for f in found):
        FAULTS.append("%s: no finding says '%s': %s" % (what, text, found))
    print("%-40s %s" % (what, ", ".join(got) or "fine"))
    return found


def expect_fine(what, url, topic, text):
    """A finding that is fine has this text."""
    found = [f for f in all_findings(url) if f["topic"] == topic]
    if not any(f["severity"] == "fine" and text in f["text"] for f in found):
        FAULTS.append("%s: no fine finding says '%s': %s" % (what, text, found))
    print("%-40s fine, %s" % (what, text))


def unchanged(what, snapshot, url):
    before = snapshot()
    diagnose(url)
    after = snapshot()
    if before != after:
        FAULTS.append("%s has changed:\n%.2000r\n%.2000r" % (what, before, after))


def acquire(url, key):
    subprocess.run([COMMAND, "acquire", "-q", "-b", url, "--ttl", "1h", key], check=True,
                   stdout=subprocess.DEVNULL)


def clock_cases(url):
    """The clock of this machine is wrong, not the one that counts time."""
    for shift in ("+3s", "-3s"):
        expect("clock " + shift, url, "warn clock",
               before=(SKEWED, shift))
    expect("clock +0.5s", url, before=(SKEWED, "+0.5s"))


class Clock:
    """Servers that start inside the block have a wall clock that differs by this many seconds."""

    def __init__(self, shift):
        library = subprocess.run(["faketime", "-f", "+0s", "printenv", "LD_PRELOAD"], check=True,
                                 capture_output=True, text=True).stdout.strip()
        # Must come before an allocator that asks for the time while it starts, as that of Redis does.
        library += " libc.so.6"
        self.names = {"LD_PRELOAD": library, "FAKETIME": shift, "DONT_FAKE_MONOTONIC": "1",
                      "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def __enter__(self):
        os.environ.update(self.names)

    def __exit__(self, *_):
        for name in self.names:
            del os.environ[name]


# --- Redis ---

class Silent:
    """A server that accepts connections and never replies."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]


class Replica(servers.Redis):
    """Without an append-only file: a server that begins one does not end."""

    def __init__(self, folder, port, config=""):
        super().__init__(folder, False, "replicaof 127.0.0.1 %d\n%s" % (port, config))


class Redis(servers.Redis):
    def __init__(self, folder):
        super().__init__(folder, True, "enable-protected-configs local\n")

    def cli(self, *words):
        return subprocess.run(["redis-cli", "-p", str(self.port), *words], check=True,
                              capture_output=True, encoding="latin-1").stdout

    def configure(self, **settings):
        for name, value in settings.items():
            if self.cli("CONFIG", "SET", name.replace("_", "-"), value).strip() != "OK":
                raise RuntimeError("CONFIG SET %s %s" % (name, value))

    def info(self, name):
        return next(line.split(":")[1] for line in self.cli("INFO").split("\n")
                    if line.startswith(name + ":")).strip()

    def snapshot(self):
        return ([(key, self.cli("DUMP", key), self.cli("PEXPIRETIME", key))
                 for key in sorted(self.cli("KEYS", "*").split())],
                self.info("rdb_changes_since_last_save"), self.info("expired_keys"),
                self.cli("PUBSUB", "CHANNELS"), self.cli("ACL", "LOG"))


def redis_persistence(store, url):
    store.configure(appendfsync="everysec")
    expect("appendfsync everysec", url, "warn persistence", text="not synced")
    store.configure(appendfsync="always", appendonly="no")
    expect("no append-only file", url, "warn persistence", text="none")
    store.configure(save="3600 1")
    expect("snapshots", url, "warn persistence", text="snapshots only")
    gone = os.path.join(store.folder, "gone")
    os.mkdir(gone)
    store.configure(dir=gone)
    os.rmdir(gone)
    store.cli("BGSAVE")
    while store.info("rdb_bgsave_in_progress") != "0" or store.info("rdb_last_bgsave_status") == "ok":
        time.sleep(0.02)
    expect("a disk that cannot be written", url, "warn persistence", "block disk")
    store.configure(dir=store.folder)
    store.cli("SAVE")
    store.configure(save="", appendonly="yes")
    while store.info("aof_rewrite_in_progress") != "0":
        time.sleep(0.02)


def redis_eviction(store, url):
    store.configure(maxmemory="1gb")
    expect("a memory limit", url)
    for policy in ("allkeys-lru", "volatile-ttl"):
        store.configure(maxmemory_policy=policy)
        expect(policy, url, "block eviction", text=policy)
    store.configure(maxmemory="0")
    expect("no memory limit", url)
    store.configure(maxmemory_policy="noeviction")
    used = int(store.info("used_memory"))
    for what, limit, wanted in (("memory that is used up", used // 2, "block memory"),
                                ("memory that is almost used up", used * 20 // 19, "warn memory")):
        store.configure(maxmemory=str(limit))
        expect(what, url, wanted)
    store.configure(maxmemory="0")


def redis_replicas(store, url):
    store.configure(repl_diskless_sync_delay="0")
    expect("missing replica", url + "?wait_replicas=1", "block replication")
    folder = os.path.join(store.folder, "replica")
    os.mkdir(folder)
    with Replica(folder, store.port) as replica:
        store.await_replicas(1)
        expect("not waited for", url, "warn replication", text="1 connected")
        expect("waited for", url + "?wait_replicas=1")
        expect("one too few", url + "?wait_replicas=2", "block replication")
        expect("a replica", replica.url(), "block replication", "warn persistence", text="replica")


def redis_replica_clocks(store, url):
    url += "?wait_replicas=1"
    silent = Silent()
    for what, shift, config, wanted in (
            ("ahead", "+3s", "", "ahead"), ("behind", "-3s", "", "behind"), ("right", "+0.1s", "", ""),
            ("hidden", "+3s", "replica-announce-port 1\n", None),
            ("closed", "+3s", "requirepass other\n", None),
            ("silent", "+3s", "replica-announce-port %d\n" % silent.port, None)):
        folder = tempfile.mkdtemp(dir=store.folder)
        replica = Replica(folder, store.port, config)
        with Clock(shift):
            replica.start()
        try:
            store.await_replicas(1)
            what = "a replica whose clock is " + what
            if wanted:
                found = expect(what, url, "warn replica_clock", text="127.0.0.1:%d" % replica.port)
                if not any(wanted + ":" in f["why"] for f in found):
                    FAULTS.append("%s: %s" % (what, found))
            elif wanted is None:
                expect(what, url)
                expect_fine(what, url, "replica_clock", "cannot be read")
            else:
                expect(what, url)
                expect_fine(what, url, "replica_clock", "offset to the primary")
        finally:
            replica.stop()
        store.await_replicas(0)


def redis_password(store, url):
    """url: of a server on this machine, without TLS or without verification. A replica on another
    machine does not get the password, whatever its name looks like."""
    replica = Replica(tempfile.mkdtemp(dir=store.folder), store.port,
                      "replica-announce-ip 127.example.invalid\n")
    replica.start()
    try:
        store.await_replicas(1)
        expect_fine("a replica on another machine", url, "replica_clock", "password is not sent")
    finally:
        replica.stop()
    store.await_replicas(0)


def redis_permissions(store, url):
    """Patterns and the channel; the commands are in test_rights.c."""
    as_user = url.replace("//", "//locker:x@")
    for missing, rights, wanted in (
            ("", "~syncguard:* &*", []),
            ("~syncguard:*", "~other:* &*",
             ["block permissions", "warn permissions", "warn records"]),
            (" ~syncguard:id:*", "~syncguard:[^i]* &*", ["block permissions"]),
            (" ~syncguard:fence:*", "~syncguard:[^f]* &*", ["block permissions"]),
            ("+set", "~syncguard:* &* -set", ["block permissions"]),
            ("or may not write to ~syncguard:*", "%R~syncguard:* &*", ["block permissions"]),
            ("or may not read ~syncguard:*", "%W~syncguard:* &*",
             ["block permissions", "warn permissions", "warn records"]),
            ("lacks ~syncguard:*", "%R~syncguard:* ~syncguard:id:* ~syncguard:fence:* &*",
             ["block permissions"]),
            ("&__redis__:invalidate", "~syncguard:* resetchannels", ["warn permissions"]),
            ("+config|get", "~syncguard:* &* -config", ["warn permissions", "warn persistence"]),
            ("+info", "~syncguard:* &* -info", ["warn permissions"]),
            ("+eval", "~syncguard:* &* -eval", ["block permissions"])):
        store.cli("ACL", "SETUSER", "locker", "reset", "on", ">x", "+@all", *rights.split())
        expect("without " + (missing or "nothing"), as_user, *wanted, text=missing)
    expect("waiters that poll anyway", as_user + "?no_tracking=1", "block permissions")
    store.cli("ACL", "SETUSER", "locker", "resetchannels", "+eval")
    expect("no channel, no_tracking=1", as_user + "?no_tracking=1")


def redis_cases(store):
    url = store.url()
    acquire(url, "held")
    store.cli("SET", "foreign", "1")
    expect("healthy", url)
    unchanged("redis", store.snapshot, url)
    clock_cases(url)
    redis_persistence(store, url)
    redis_eviction(store, url)
    redis_replicas(store, url)
    redis_replica_clocks(store, url)
    store.cli("ACL", "SETUSER", "locker", "reset", "on", ">x", "+@all", "~*", "&*")
    redis_password(store, url.replace("//", "//locker:x@"))
    redis_permissions(store, url)
    expect("TLS off for another host", url.replace("127.0.0.1", "0.0.0.0"), "warn tls", text="off")
    store.cli("SET", "syncguard:broken", "{}")
    expect("unreadable record", url, "warn records")
    store.cli("DEL", "syncguard:broken")
    expect("healthy again", url)
    with servers.RedisTls(tempfile.mkdtemp(dir=store.folder)) as secure:
        expect("TLS", secure.url(), "warn persistence")
        expect("TLS without verification",
               secure.url().replace("localhost", "0.0.0.0") + "&tls_insecure=1", "warn persistence",
               "warn tls", text="not verified")
        redis_password(secure, secure.url() + "&tls_insecure=1")


# --- PostgreSQL ---

class Postgres(servers.Postgres):
    def __init__(self, folder):
        # Beside a prepared transaction the snapshots of autovacuum are old as well.
        super().__init__(folder, ("max_prepared_transactions=2", "autovacuum=off"))

    def snapshot(self):
        # The statistics of a session are sent when it ends, at the latest a second later.
        time.sleep(1.2)
        return [self.sql(text) for text in (
            "SELECT * FROM syncguard_locks ORDER BY 1", "SELECT * FROM syncguard_fence_counters",
            "SELECT relname, relpages, relfilenode FROM pg_class WHERE relname LIKE 'syncguard%' "
            "ORDER BY 1",
            "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables ORDER BY 1",
            "SELECT rolname, rolconfig FROM pg_roles ORDER BY 1")]

    def reload(self, text):
        self.sql("ALTER SYSTEM " + text)
        self.sql("SELECT pg_reload_conf()")
        time.sleep(0.3)


class OldSession:
    """A session of a role in a transaction that was left open, with its snapshot."""

    def __init__(self, store, role):
        self.store = store
        self.psql = subprocess.Popen(
            [program("psql"), "-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-p",
             str(store.port), "-U", role, "-d", "postgres"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.psql.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT pg_backend_pid();\n")
        self.psql.stdin.flush()
        self.pid = int(self.psql.stdout.readline())

    def end(self):
        self.psql.communicate()
        while self.store.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %d" % self.pid):
            time.sleep(0.02)


def spend_transactions(store):
    """Runs so many transactions that a snapshot from before them counts as old."""
    store.execute("DO $$ BEGIN FOR i IN 1..10100 LOOP PERFORM txid_current(); COMMIT; END LOOP; "
                  "END $$")


def postgres_snapshots(store, url):
    """Sessions and transactions that keep old row versions alive; replication slots are in postgres_standby."""
    own, other = OldSession(store, "worker"), OldSession(store, "postgres")
    store.execute("BEGIN; PREPARE TRANSACTION 'left'")
    expect("young snapshots", url)
    spend_transactions(store)
    expect("old sessions, prepared transaction", url, "warn snapshots",
           text="2 sessions, 1 prepared transactions and 0 replication slots")
    own.end()
    other.end()
    expect("prepared transaction", url, "warn snapshots",
           text="0 sessions, 1 prepared transactions and 0 replication slots")
    store.execute("ROLLBACK PREPARED 'left'")
    expect("no old snapshot", url)


def postgres_settings(store, url):
    for name, value, wanted in (("synchronous_commit", "off", "warn durability"),
                                ("default_transaction_read_only", "on", "block read_only")):
        store.sql("ALTER ROLE worker SET %s = %s" % (name, value))
        expect("%s %s" % (name, value), url, wanted)
        store.sql("ALTER ROLE worker RESET %s" % name)
    for name, wanted in (("fsync", "block fsync"), ("full_page_writes", "warn full_page_writes")):
        store.reload("SET %s = off" % name)
        expect("%s off" % name, url, wanted)
        store.reload("RESET %s" % name)
    store.sql("ALTER ROLE postgres SET synchronous_commit = local")  # otherwise this statement waits, too
    for names, needed in (("elsewhere", 1), ("ANY 2 (a, b, c)", 2), ("first 3 (*)", 3), ("2(x,y)", 2)):
        store.reload("SET synchronous_standby_names = '%s'" % names)
        expect("no standby of " + names, url, "block replication", text="%d must" % needed)
    store.sql("ALTER ROLE worker SET synchronous_commit = local")
    expect("standbys that are not waited for", url, "warn replication")
    store.reload("RESET synchronous_standby_names")
    store.sql("ALTER ROLE worker RESET synchronous_commit")


def postgres_tables(store, url):
    for what, before, after, wanted in (
            ("no owner column", "ALTER TABLE syncguard_locks DROP COLUMN owner",
             "ALTER TABLE syncguard_locks ADD COLUMN owner text", "warn owner"),
            ("no index", "DROP INDEX syncguard_locks_expires_at_ms_idx",
             "CREATE INDEX syncguard_locks_expires_at_ms_idx ON syncguard_locks (expires_at_ms)",
             "warn index"),
            ("no fence column", "ALTER TABLE syncguard_locks RENAME COLUMN fence TO x",
             "ALTER TABLE syncguard_locks RENAME COLUMN x TO fence", "block schema"),
            ("no table", "ALTER TABLE syncguard_locks RENAME TO x",
             "ALTER TABLE x RENAME TO syncguard_locks", "block schema"),
            ("unlogged locks", "ALTER TABLE syncguard_locks SET UNLOGGED",
             "ALTER TABLE syncguard_locks SET LOGGED", "block unlogged"),
            ("unlogged counters", "ALTER TABLE syncguard_fence_counters SET UNLOGGED",
             "ALTER TABLE syncguard_fence_counters SET LOGGED", "block unlogged"),
            ("row security", "ALTER TABLE syncguard_locks ENABLE ROW LEVEL SECURITY",
             "ALTER TABLE syncguard_locks DISABLE ROW LEVEL SECURITY", "block row_security"),
            ("unreadable record", "INSERT INTO syncguard_locks VALUES ('b', 'x', 99999999999999, 1, "
             "'1', 'b')", "DELETE FROM syncguard_locks WHERE key = 'b'", "warn records")):
        store.sql(before)
        expect(what, url, wanted)
        store.sql(after)
    store.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    latin = store.url().rsplit("/", 1)[0] + "/latin"
    expect("a database without tables", latin, "block schema", "warn encoding")


def postgres_permissions(store, url):
    """Functions, columns and schemas; the tables are in test_rights.c."""
    expect("a role with the documented rights", url)
    for function, severity in (
            ("hashtext(text)", "block"), ("pg_advisory_xact_lock(bigint)", "block"),
            ("pg_try_advisory_xact_lock(bigint)", "block"),
            ("pg_try_advisory_xact_lock(integer,integer)", "block"),
            ("pg_notify(text,text)", "block"), ("set_config(text,text,boolean)", "block"),
            ("pg_advisory_lock_shared(integer,integer)", "warn"),
            ("pg_advisory_unlock_shared(integer,integer)", "warn")):
        store.sql("REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC" % function)
        expect("without " + function, url, severity + " permissions", text=function)
        store.sql("GRANT EXECUTE ON FUNCTION %s TO PUBLIC" % function)
    store.sql("REVOKE UPDATE ON syncguard_locks FROM worker")
    expect("without UPDATE", url, "block permissions", text="UPDATE on")
    store.sql("GRANT UPDATE (lock_id, expires_at_ms, acquired_at_ms, fence, user_key, owner) "
              "ON syncguard_locks TO worker")
    expect("UPDATE of the columns", url)
    store.sql("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    expect("without the schema", url, "block permissions", text="SCHEMA public")
    expect("with the schema in the URL", url + "?lock_table=public.syncguard_locks&"
           "fence_table=public.syncguard_fence_counters", "block permissions", text="SCHEMA public")
    store.sql("GRANT USAGE ON SCHEMA public TO PUBLIC")


def postgres_tls(store, url):
    certificates(store.folder)
    if os.geteuid() == 0:
        shutil.chown(os.path.join(store.folder, "server.key"), "postgres")
        shutil.chown(store.folder, "postgres")
    expect("TLS off for another host", url.replace("127.0.0.1", "0.0.0.0") + "?sslmode=disable",
           "warn tls", text="off")
    for name in ("cert", "key"):
        store.sql("ALTER SYSTEM SET ssl_%s_file = '%s/server.%s'" % (
            name, store.folder, {"cert": "pem", "key": "key"}[name]))
    store.reload("SET ssl = on")
    expect("TLS without verification", url.replace("127.0.0.1", "0.0.0.0") + "?sslmode=require",
           "warn tls", text="not verified")
    expect("TLS", url.replace("127.0.0.1", "localhost") + "?sslmode=verify-full&sslrootcert=%s/ca.pem"
           % store.folder)


def postgres_standby(store):
    standby = store.standby
    expect("a standby that confirms", store.url())
    one = store.url().replace(",127.0.0.1:%d" % standby.port, "")
    expect_fine("a standby that the URL does not name", one, "replica_clock", "one server only")
    silent = Silent()
    expect_fine("servers that are silent", store.url().replace(
        "127.0.0.1:%d" % standby.port, ",".join(["127.0.0.1:%d" % silent.port] * 3)),
                "records", "can be read")
    for shift, wanted in (("+3s", "ahead:"), ("-3s", "behind:"), ("+0.1s", "")):
        standby.stop()
        expect_fine("a standby that is down", store.url() + "?connect_timeout=9", "replica_clock",
                    "cannot be read")
        with Clock(shift):
            standby.start()
        while "sync" not in store.execute("SELECT sync_state FROM pg_stat_replication"):
            time.sleep(0.05)
        what = "a standby with a clock of " + shift
        if not wanted:
            expect(what, store.url())
            continue
        found = expect(what, store.url(), "warn replica_clock", text=":%d:" % standby.port)
        if not any(wanted in f["why"] for f in found):
            FAULTS.append("%s: %s" % (what, found))
    expect("the standby", standby.url(), "block role")
    store.sql("ALTER SYSTEM RESET synchronous_standby_names")
    store.sql("SELECT pg_reload_conf()")
    time.sleep(0.3)
    expect("asynchronous standby", store.url(), "warn replication")
    postgres_replication_slot(store)


def postgres_replication_slot(store):
    """A standby that reported its oldest snapshot is gone, and its replication slot stays."""
    standby = store.standby
    store.execute("SELECT pg_create_physical_replication_slot('left')")
    for setting in ("primary_slot_name = 'left'", "hot_standby_feedback = on"):
        standby.execute("ALTER SYSTEM SET " + setting)
    standby.execute("SELECT pg_reload_conf()")
    while not store.execute("SELECT xmin FROM pg_replication_slots WHERE xmin IS NOT NULL"):
        time.sleep(0.05)
    standby.kill()
    while store.execute("SELECT 1 FROM pg_stat_replication"):
        time.sleep(0.05)
    expect("young replication slot", store.url())
    spend_transactions(store)
    expect("replication slot of a standby that is gone", store.url(), "warn snapshots",
           text="1 replication slots")
    store.execute("SELECT pg_drop_replication_slot('left')")
    expect("no replication slot", store.url())


def postgres_cases(store):
    store.setup(BUILD)
    store.sql("CREATE ROLE worker LOGIN")
    store.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON syncguard_locks TO worker")
    store.sql("GRANT SELECT, INSERT, UPDATE ON syncguard_fence_counters TO worker")
    url = store.url().replace("postgres@", "worker@")
    acquire(url, "held")
    expect("healthy", url)
    unchanged("postgres", store.snapshot, url)
    clock_cases(url)
    postgres_snapshots(store, url)
    postgres_settings(store, url)
    postgres_tables(store, url)
    postgres_permissions(store, url)
    postgres_tls(store, url)
    store.reload("RESET ssl")
    expect("healthy again", url)
    folder = tempfile.mkdtemp(dir=store.folder)
    os.chmod(folder, 0o755)
    with servers.PostgresPair(folder) as pair:
        pair.setup(BUILD)
        postgres_standby(pair)
    folder = tempfile.mkdtemp(dir=store.folder)
    os.chmod(folder, 0o755)
    with servers.Bouncer(folder, "transaction", announced=False) as pooled:
        pooled.setup(BUILD)
        expect("a pooler that the URL does not name", pooled.url(), "warn pooler")


# --- SQLite ---

def as_another_user():
    """Words before the command, which drop the rights of root."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class Sqlite(servers.Sqlite):
    def snapshot(self):
        """All but the index of the write-ahead log, which readers write to."""
        return {name: hashlib.sha256(open(os.path.join(self.folder, name), "rb").read()).hexdigest()
                for name in os.listdir(self.folder) if not name.endswith("-shm")}


def sqlite_permissions(store):
    user = as_another_user()
    folder = os.path.join(store.folder, "theirs")
    url = "sqlite:%s/locks.db" % folder
    file = url[len("sqlite:"):]
    os.chmod(store.folder, 0o755)
    os.mkdir(folder, 0o700)
    if user:
        os.chown(folder, 65534, 65534)
    expect("a file that does not exist", url, "warn file", before=user)
    os.chmod(folder, 0o500)
    expect("one that cannot be created", url, "block permissions", before=user, text="theirs")
    expect("nor its folder", "sqlite:%s/a/b/locks.db" % folder, "block permissions", before=user)
    os.chmod(folder, 0o700)
    subprocess.run([*user, COMMAND, "run", "-b", url, "k", "true"], check=True)
    expect("healthy", url, before=user)
    os.chmod(folder, 0o500)
    expect("a folder that cannot be written", url, "block permissions", before=user, text="folder")
    os.chmod(folder, 0o770)
    expect("a folder of a group", url, "warn folder", before=user)
    os.chmod(folder, 0o700)
    os.chmod(file, 0o400)
    done = subprocess.run([*user, COMMAND, "doctor", "-b", url], capture_output=True, text=True,
                          check=False)
    if done.returncode != 77 or "may be read but not written" not in done.stderr:
        FAULTS.append("a file that cannot be written: %s" % done)


def refused(what, url, text, *before):
    done = subprocess.run([*before, COMMAND, "doctor", "-b", url], capture_output=True, text=True,
                          check=False, timeout=120)
    if done.returncode != 64 or text not in done.stderr:
        FAULTS.append("%s: %s" % (what, done))
    print("%-40s refused" % what)


def sqlite_mounts(store):
    """One file with two paths, and other files beside it on each."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        print("mounts are not permitted here")
        return
    place = os.path.join(store.folder, "mounts")
    for name in ("lower", "upper", "work", "app", "merged"):
        os.makedirs(os.path.join(place, "a b", name), 0o700)
    place = os.path.join(place, "a b")
    acquire("sqlite:%s/lower/locks.db" % place, "k")
    acquire("sqlite:%s/upper/own.db" % place, "k")

    def inside(script):
        return ("unshare", "-m", "sh", "-ec", "cd '%s'; %s; exec \"$@\"" % (place, script), "sh")
    overlay = inside("mount -t overlay none -o "
                     "lowerdir='%s/app:%s/lower',upperdir='%s/upper',workdir=work merged"
                     % (place, place, place))
    refused("a file mounted alone", "sqlite:%s/app/locks.db" % place, "mount the folder",
            *inside("touch app/locks.db; mount --bind lower/locks.db app/locks.db"))
    os.unlink(os.path.join(place, "app", "locks.db"))
    expect("its folder mounted", "sqlite:%s/app/locks.db" % place,
           before=inside("mount --bind lower app"))
    if subprocess.run([*overlay, "true"], check=False, capture_output=True).returncode != 0:
        print("overlays are not permitted here")
        return
    refused("upper folder of an overlay", "sqlite:%s/upper/own.db" % place, "upper folder",
            *overlay)
    for what, script, path in (
            ("mounted elsewhere", "mkdir -p -m 700 b; mount --bind upper b", "b"),
            ("named through a link", "ln -sfn upper ln; umount merged; mount -t overlay none -o "
             "lowerdir='%s/app',upperdir='%s/ln',workdir=work merged" % (place, place), "upper"),
            ("with a colon", "umount merged; mkdir -m 700 c:d; cp upper/own.db c:d; mount -t overlay "
             "none -o lowerdir='%s/app',upperdir='%s/c:d',workdir=work merged" % (place, place),
             "c:d")):
        words = list(overlay)
        words[4] = words[4].replace("; exec", "; %s; exec" % script)
        refused("upper folder " + what, "sqlite:%s/%s/own.db" % (place, path), "upper folder", *words)
    expect("lower folder of an overlay", "sqlite:%s/lower/locks.db" % place, "warn file_system",
           before=overlay, text="lower folder")
    expect("an overlay", "sqlite:%s/merged/own.db" % place, "warn file_system", before=overlay,
           text="overlay")


def sqlite_space(store):
    """A file system that is full, or out of inodes; a quota cannot be set up everywhere."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        print("mounts are not permitted here")
        return
    place = os.path.join(store.folder, "small")
    os.mkdir(place, 0o700)
    url = "sqlite:%s/locks.db" % place

    def on_tmpfs(options, script):
        return ("unshare", "-m", "sh", "-ec",
                "mount -t tmpfs -o mode=700,%s none '%s'; '%s' run -q -b '%s' k true\n%s\nexec \"$@\""
                % (options, place, COMMAND, url, script), "sh")
    fill = "dd if=/dev/zero of='%s/other' bs=4k 2>/dev/null || :" % place
    expect("a small file system", url, "warn file_system", before=on_tmpfs("size=200k", ":"))
    for size in ("200k", "1m"):
        expect("a full one of " + size, url, "warn file_system", "block space",
               before=on_tmpfs("size=" + size, fill), text="full")
    names = "for i in $(seq 30); do touch '%s'/$i 2>/dev/null || :; done" % place
    expect("no inode", url, "warn file_system", "block space", text="inode",
           before=on_tmpfs("nr_inodes=20", names))
    gone = "rm '%s'/locks.db*; " % place
    expect("no file yet", url, "warn file", before=on_tmpfs("size=200k", gone))
    expect("nor space for it", url, "block space", before=on_tmpfs("size=200k", gone + fill))
    expect("nor an inode", url, "block space", before=on_tmpfs("nr_inodes=20", gone + names))


def sqlite_group(store):
    """Two users with nothing but a group in common; and root, who does not use their files."""
    if os.geteuid() != 0:
        print("only root can be two users")
        return
    group = 64242
    users = [("setpriv", "--reuid=%d" % u, "--regid=%d" % u, "--groups=%d" % group, "sh", "-ec",
              "umask 077; exec \"$@\"", "sh") for u in (65531, 65532)]
    place = os.path.join(store.folder, "group")
    file = os.path.join(place, "locks.db")
    url = "sqlite:%s?mode=0660" % file
    os.mkdir(place)
    os.chown(place, 0, group)
    os.chmod(place, 0o2770)
    for user in users + users:
        subprocess.run([*user, COMMAND, "run", "-q", "-b", url, "k", "true"], check=True)
        for name in os.listdir(place):
            about = os.stat(os.path.join(place, name))
            if (about.st_gid, about.st_mode & 0o777) != (group, 0o660):
                FAULTS.append("%s: %s" % (name, about))
    for user in users:
        expect("a file of a group", url, before=user)
    with subprocess.Popen([*users[0], COMMAND, "run", "-b", url, "k", "cat"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.stdout.readline()
        other = subprocess.run([*users[1], COMMAND, "run", "-q", "-n", "-b", url, "k", "true"],
                               check=False)
        if other.returncode != 1:
            FAULTS.append("two users of a group do not exclude each other: %s" % other)
        holder.stdin.close()
    os.chmod(place, 0o770)
    expect("its folder does not pass on the group", url, "warn folder", before=users[0])
    os.chmod(place, 0o3770)
    expect("its folder is sticky", url, "warn folder", before=users[0], text="3770")
    os.chmod(place, 0o2770)
    os.chmod(file, 0o600)
    expect("a file that its owner keeps", url, "warn mode", before=users[0])
    os.chmod(file, 0o666)
    expect("a file that all users may write", url, "block mode", before=users[0])
    os.chmod(file, 0o660)
    expect("without the option", url.split("?")[0], "warn mode", "warn folder", before=users[1])
    refused("root and the file of another user", url, "use: sudo -u '#65531' syncguard ...")
    # An option that no user may write is not a question of who asks.
    done = subprocess.run([COMMAND, "doctor", "-b", url + "&foo=1"], capture_output=True, text=True, check=False)
    if "option foo" not in done.stderr or "sudo" in done.stderr:
        FAULTS.append("root and a wrong option for the file of another user: %s" % done)


def sqlite_cases(store):
    url = store.url()
    file = url[len("sqlite:"):]
    if subprocess.run(["stat", "-f", "-c", "%T", store.folder], check=True,
                      capture_output=True).stdout == b"overlayfs\n":
        USUAL.add("overlay")  # the tests run in a container
    expect_fine("a store without checks", "memory:", "checks", "nothing was examined")
    acquire(url, "held")
    expect("healthy", url)
    unchanged("sqlite", store.snapshot, url)
    for mode, wanted in ((0o640, "warn mode"), (0o660, "warn mode"), (0o666, "block mode")):
        os.chmod(file, mode)
        expect("mode %o" % mode, url, wanted)
    os.chmod(file, 0o600)
    expect("durability", url + "?durability=normal", "warn durability")
    sqlite_permissions(store)
    sqlite_mounts(store)
    sqlite_space(store)
    sqlite_group(store)
    memory = "/dev/shm"
    if os.path.isdir(memory) and subprocess.run(["stat", "-f", "-c", "%T", memory], check=True,
                                                capture_output=True).stdout == b"tmpfs\n":
        place = tempfile.mkdtemp(dir=memory)
        try:
            acquire("sqlite:%s/locks.db" % place, "k")
            expect("in memory", "sqlite:%s/locks.db" % place, "warn file_system", text="tmpfs")
        finally:
            shutil.rmtree(place)


# --- documents ---

def check_documents():
    """Each topic that may be a problem is documented."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sources = glob.glob(root + "/src/backends/*/diagnose.c") + \
        glob.glob(root + "/src/backends/*/rights.c") + [root + "/src/core/findings.c"]
    topics = {"file"}
    for name in sources:
        with open(name, encoding="utf-8") as f:
            topics.update(re.findall(r'syncguard_report\(\s*\S+,[^"]*?"(\w+)"', f.read()))
    if len(topics) < 25:
        FAULTS.append("too few topics found: %s" % sorted(topics))
    for name in ("docs/guides/doctor.md", "docs/man/syncguard-doctor.1"):
        with open(os.path.join(root, name), encoding="utf-8") as f:
            words = set(re.findall(r"\w+", f.read()))
        if topics - words:
            FAULTS.append("%s does not list %s" % (name, sorted(topics - words)))


def main():
    kind, cases = {"redis": (Redis, redis_cases), "postgres": (Postgres, postgres_cases),
                   "sqlite": (Sqlite, sqlite_cases)}[sys.argv[2]]
    # A file in memory would be a finding.
    folder = tempfile.mkdtemp(prefix="syncguard-doctor-", dir="/var/tmp") if kind is Sqlite else \
        servers.make_folder("syncguard-doctor-")
    check_documents()
    try:
        with kind(folder) as store:
            cases(store)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(FAULTS) or "doctor finds what it should")
    return 1 if FAULTS else 0


if __name__ == "__main__":
    sys.exit(main())
