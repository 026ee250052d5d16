"""The stores of a fault run: started on free loopback ports, stopped by their pid."""

import atexit
import glob
import http.client
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time


EMULATOR_PORT = "SYNCGUARD_FAULT_EMULATOR_PORT"


def make_folder(prefix):
    """In memory where there is room: a process that is killed loses nothing of it, and the time of
    a busy disk's syncs is not what is measured."""
    memory = "/dev/shm"
    roomy = os.path.isdir(memory) and shutil.disk_usage(memory).free > 1 << 30
    folder = tempfile.mkdtemp(prefix=prefix, dir=memory if roomy else None)
    os.chmod(folder, 0o755)  # PostgreSQL runs as another user
    return folder


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 0.5):
                return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("no server came up on port %d" % port)


class Sqlite:
    name = "sqlite"

    def __init__(self, folder):
        self.folder = folder
        self.process = None

    def start(self):
        pass

    def url(self, port=None):
        return "sqlite:" + os.path.join(self.folder, "locks.db")

    def stop(self):
        pass


class Server:
    """A server process that can be killed, stopped and started again."""

    process = None
    port = None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Redis(Server):
    name = "redis"

    def __init__(self, folder, persistent=True):
        self.folder = folder
        self.persistent = persistent
        self.port = free_port()

    def start(self):
        arguments = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                     "--dir", self.folder, "--loglevel", "warning"]
        if self.persistent:
            arguments += ["--appendonly", "yes", "--appendfsync", "always"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        wait_for_port(self.port)
        while b"PONG" not in self.command("PING"):
            time.sleep(0.02)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), 2)

    @staticmethod
    def ask(connection, *words):
        connection.sendall(b"*%d\r\n" % len(words) +
                           b"".join(b"$%d\r\n%s\r\n" % (len(w.encode()), w.encode())
                                    for w in words))
        return connection.recv(65536)

    def command(self, *words):
        with self.connect() as connection:
            return self.ask(connection, *words)

    def answers(self):
        try:
            return b"PONG" in self.command("PING")
        except OSError:
            return False

    def url(self, port=None):
        return "redis://127.0.0.1:%d" % (port or self.port)


class RedisServers:
    """Several servers, as tests/redis starts them."""

    port = None

    def __init__(self, folder):
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                            "redis", "with-redis")
        loader = importlib.machinery.SourceFileLoader("with_redis", path)
        self.tools = importlib.util.module_from_spec(
            importlib.util.spec_from_loader("with_redis", loader))
        sys.dont_write_bytecode = True
        loader.exec_module(self.tools)
        self.servers = None
        self.address = None

    def start_again(self, index, *options):
        """A server that was killed, at its port and with its files."""
        name, _, port = self.servers.running[index]
        path = os.path.join(self.servers.dir, name, "redis.conf")
        child = subprocess.Popen([self.servers.binary, path, *options], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                                 preexec_fn=self.tools.die_with_parent)
        self.servers.running[index] = (name, child, port)

    def kill(self, port):
        index = next(i for i, s in enumerate(self.servers.running) if s[2] == port)
        process = self.servers.running[index][1]
        process.kill()
        process.wait()
        return index

    def url(self, port=None):
        return self.address

    def stop(self):
        if self.servers:
            self.servers.stop()


class Sentinel(RedisServers):
    """A primary with two replicas and three sentinels."""

    name = "redis-sentinel"

    def start(self):
        self.servers = self.tools.Servers()
        self.port, self.address = self.tools.start_sentinel(self.servers)

    def primary(self):
        """The port that most of the sentinels name."""
        named = []
        for name, _, port in self.servers.running:
            if name.startswith("sentinel"):
                answer = self.servers.ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
                named.append(int(answer.split(b"\r\n")[4]))
        return max(set(named), key=named.count) if len(set(named)) == 1 else None

    def fail_over(self):
        """Kills the primary; returns when all sentinels name another one, which takes writes."""
        old = self.port
        index = self.kill(old)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            new = self.primary()
            if new not in (None, old) and b"role:master" in self.servers.ask(new, "INFO",
                                                                             "replication"):
                break
            time.sleep(0.02)
        self.port = new
        return lambda: self.start_again(index, "--replicaof", "127.0.0.1", str(self.port))


class Cluster(RedisServers):
    """Three primaries with a replica each. All locks are in one slot."""

    name = "redis-cluster"

    def start(self):
        self.servers = self.tools.Servers()
        _, self.address = self.tools.start_cluster(self.servers)
        ports = [port for _, _, port in self.servers.running]
        self.primaries = ports[:3]
        self.slot = int(self.ask(ports[0], "CLUSTER", "KEYSLOT", "{syncguard}")[1:])
        self.port = self.owner()

    def ask(self, port, *words):
        """A short answer, as it comes."""
        return self.servers.ask(port, *words)

    def node_id(self, port):
        return self.ask(port, "CLUSTER", "MYID").split()[1].decode()

    def owner(self):
        """The port of the node that says of itself that it has the slot, or None."""
        for _, child, port in self.servers.running:
            if child.poll() is not None:
                continue
            for line in self.ask(port, "CLUSTER", "NODES").decode(errors="replace").splitlines():
                if "myself,master" not in line:
                    continue
                ranges = [w.split("-") for w in line.split()[8:] if not w.startswith("[")]
                if any(int(r[0]) <= self.slot <= int(r[-1]) for r in ranges):
                    return port
        return None

    def move_slot(self, keys, pause):
        """To the next primary, a few keys at a time."""
        old = self.owner()
        new = self.primaries[(self.primaries.index(old) + 1) % 3]
        new_id = self.node_id(new)
        self.ask(new, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.node_id(old))
        self.ask(old, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", new_id)
        while True:
            answer = self.ask(old, "CLUSTER", "GETKEYSINSLOT", self.slot, keys)
            names = answer.decode().split("\r\n")[2::2]
            if not names:
                break
            self.ask(old, "MIGRATE", "127.0.0.1", new, "", 0, 5000, "KEYS", *names)
            time.sleep(pause)
        for port in [new, old] + self.primaries:
            self.ask(port, "CLUSTER", "SETSLOT", self.slot, "NODE", new_id)
        self.port = new

    def fail_over(self):
        """Kills the node that has the slot; returns when its replica has it."""
        index = self.kill(self.port)
        end = time.monotonic() + 30
        new = None
        while new is None and time.monotonic() < end:
            time.sleep(0.02)
            new = self.owner()
        self.port = new
        return lambda: self.start_again(index)


class Seed(Cluster):
    """A Cluster of which the clients are given one node only, that which has the slot."""

    name = "redis-cluster-seed"

    def start(self):
        super().start()
        self.address = "redis+cluster://127.0.0.1:%d" % self.port


class Postgres(Server):
    name = "postgres"

    def __init__(self, folder):
        self.data = os.path.join(folder, "data")
        self.port = free_port()
        bins = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        self.bin = bins[-1] if bins else os.path.dirname(shutil.which("initdb") or "/usr/bin/x")
        self.folder = folder
        self.made = False

    def _as_user(self, arguments):
        """PostgreSQL refuses to run as root."""
        if os.geteuid() == 0:
            return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] + arguments
        return arguments

    def start(self):
        if not self.made:
            if os.geteuid() == 0:
                shutil.chown(self.folder, "postgres", "postgres")
            os.chmod(self.folder, 0o755)
            subprocess.run(self._as_user([self.bin + "/initdb", "-D", self.data, "-U", "postgres",
                                          "-A", "trust", "--no-sync", "-E", "UTF8",
                                          "--locale=C", "--wal-segsize=1"]),
                           check=True, stdout=subprocess.DEVNULL, cwd="/")
            self.made = True
        self.process = subprocess.Popen(
            self._as_user([self.bin + "/postgres", "-D", self.data, "-p", str(self.port),
                           "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=60",
                           "-c", "unix_socket_directories=" + self.folder]),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        wait_for_port(self.port)
        while subprocess.run([self.bin + "/pg_isready", "-q", "-h", "127.0.0.1", "-p",
                              str(self.port)], check=False).returncode != 0:
            time.sleep(0.05)

    def answers(self):
        return self.sql("SELECT 1").strip() == "1"

    def sql(self, text):
        return subprocess.run([self.bin + "/psql", "-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-p",
                               str(self.port), "-U", "postgres", "-c", text], check=False,
                              capture_output=True, text=True).stdout

    def kill(self):
        """All of its processes, as a crash of the machine would."""
        group = subprocess.run(["pgrep", "-P", str(self.process.pid)], check=False,
                               capture_output=True, text=True).stdout.split()
        super().kill()
        for pid in group:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        pid_file = os.path.join(self.data, "postmaster.pid")
        if os.path.exists(pid_file):
            os.unlink(pid_file)

    def _signal_all(self, number):
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], check=False,
                                  capture_output=True, text=True).stdout.split()
        for pid in [self.process.pid] + [int(c) for c in children]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def pause(self):
        self._signal_all(signal.SIGSTOP)

    def resume(self):
        self._signal_all(signal.SIGCONT)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.process.send_signal(signal.SIGINT)
            self.process.wait(20)

    def url(self, port=None):
        return "postgres://postgres@127.0.0.1:%d/postgres" % (port or self.port)


class Bouncer(Postgres):
    """PostgreSQL behind PgBouncer; pause, kill and start are the pooler's."""

    name = "postgres-pooled"

    def __init__(self, folder, mode):
        super().__init__(folder)
        self.mode = mode
        self.pooler = None
        self.pooler_port = free_port()
        self.ini = os.path.join(folder, "pgbouncer.ini")

    def start(self):
        if self.process is None:
            super().start()
            with open(self.ini, "w") as f:
                f.write("[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\n"
                        "listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"
                        "auth_type = any\npool_mode = %s\ndefault_pool_size = 20\n"
                        "max_client_conn = 200\nignore_startup_parameters = options\n"
                        "logfile = %s\n" %
                        (self.port, self.pooler_port, self.mode, self.ini + ".log"))
        self.pooler = subprocess.Popen(self._as_user(["pgbouncer", "-q", self.ini]), cwd="/",
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.pooler_port)

    def kill(self):
        self.pooler.kill()
        self.pooler.wait()

    def stop(self):
        if self.pooler is not None:
            self.kill()
        super().stop()

    def url(self, port=None):
        return super().url(port or self.pooler_port) + (
            "" if self.mode == "session" else "?pooler=1")


class PostgresPair(Postgres):
    """A primary and a standby that confirms every commit that waits for it."""

    name = "postgres-standby"

    def __init__(self, folder):
        super().__init__(folder)
        self.standby = Postgres(os.path.join(folder, "standby"))
        os.mkdir(self.standby.folder)

    def start(self):
        super().start()
        if os.geteuid() == 0:
            shutil.chown(self.standby.folder, "postgres", "postgres")
        subprocess.run(self._as_user([self.bin + "/pg_basebackup", "-D", self.standby.data, "-h",
                                      "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-R",
                                      "-c", "fast", "--no-sync"]), check=True, cwd="/",
                       stdout=subprocess.DEVNULL)
        self.standby.made = True
        self.standby.start()
        self.standby.sql("ALTER SYSTEM SET wal_retrieve_retry_interval = '200ms'")
        # Only now: without a standby every commit would wait.
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("ALTER SYSTEM SET wal_keep_size = '256MB'")  # for a standby that was away
        self.sql("SELECT pg_reload_conf()")
        while "sync" not in self.sql("SELECT sync_state FROM pg_stat_replication"):
            time.sleep(0.05)

    def fail_over(self):
        self.kill()
        self.promote()

    def promote(self):
        while "f" not in self.standby.sql("SELECT pg_is_in_recovery()"):
            self.standby.sql("SELECT pg_promote(true, 30)")

    def url(self, port=None):
        return "postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres" % (self.port,
                                                                         self.standby.port)

    def stop(self):
        self.standby.stop()
        super().stop()


class Firestore(Server):
    name = "firestore"

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()

    @staticmethod
    def program():
        listed = subprocess.run(["dpkg", "-L", "google-cloud-cli-firestore-emulator"], check=False,
                                capture_output=True, text=True).stdout.split()
        found = [p for p in listed if p.endswith("/cloud_firestore_emulator")]
        return found[0] if found else shutil.which("cloud_firestore_emulator")

    def start(self):
        # A server of some minutes: compiling less is faster in the end.
        environment = dict(os.environ,
                           JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        self.process = subprocess.Popen([self.program(), "start", "--host=127.0.0.1",
                                         "--port=%d" % self.port], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True,
                                        env=environment)
        wait_for_port(self.port, 60)
        self._warm()

    def _call(self, method, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", "/v1/projects/warm/databases/(default)/documents:" + method,
                               json.dumps(body), {"Authorization": "Bearer owner",
                                                  "Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def _warm(self):
        """The first requests of each kind take seconds in a fresh Java process."""
        name = "projects/warm/databases/(default)/documents/locks/warm"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if self._call("batchGet", {"documents": [name]}) == 200:
                    break
            except OSError:
                time.sleep(0.1)
        query = {"structuredQuery": {"from": [{"collectionId": "locks"}], "where": {"fieldFilter": {
            "field": {"fieldPath": "lockId"}, "op": "EQUAL", "value": {"stringValue": "x"}}}}}
        for _ in range(30):
            self._call("commit", {"writes": [{"update": {"name": name, "fields": {}}}]})
            self._call("batchGet", {"documents": [name]})
            self._call("runQuery", query)

    def _signal(self, number):
        os.killpg(self.process.pid, number)

    def pause(self):
        self._signal(signal.SIGSTOP)

    def resume(self):
        self._signal(signal.SIGCONT)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self.process.wait()

    def url(self, port=None):
        return "firestore://fault-run"

    def environment(self, port=None):
        return {"FIRESTORE_EMULATOR_HOST": "127.0.0.1:%d" % (port or self.port)}


class SharedFirestore(Firestore):
    """One emulator for all cells of a run: a fresh one is slow for its first minute. The port of
    one that runs already may be given in the environment."""

    def __init__(self, folder):
        super().__init__(folder)
        self.given = os.environ.get(EMULATOR_PORT)
        if self.given:
            self.port = int(self.given)

    def start(self):
        if self.process is None and not self.given:
            super().start()
            atexit.register(super().stop)

    def stop(self):
        if self.process is not None:
            self.resume()
