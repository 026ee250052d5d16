"""Redis: one server, a server with TLS or a replica, Sentinels, a Cluster."""

import os
import re
import shutil
import socket
import time

from .certificates import certificates
from .process import Server, clock_ahead, free_port, spawn

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/backends/redis.md")
MORE_RIGHTS = {"redis-replicas": "+wait", "redis-sentinel": "+role",
               "redis-cluster": "+asking +cluster|slots +cluster|myid"}
REPLICA = "repl-diskless-sync-delay 0\n"


def documented_rights(name):
    """The documented rights; the tests show that they are enough, and that all of them are needed."""
    with open(DOCUMENT, encoding="utf-8") as f:
        text = f.read()
    rights = " ".join(re.search(r"user locker on >password (.*?)```", text, re.S).group(1).split())
    more = MORE_RIGHTS.get(name, "")
    wanted = {"`%s`" % more} if more else set()
    if name == "redis-cluster":  # it has one database, and another prefix
        wanted.add("`~{syncguard}:*`")
        rights = rights.replace("~syncguard:*", "~{syncguard}:*").replace("+select ", "")
    for words in wanted:
        if words not in text:
            raise RuntimeError("%s does not name %s" % (DOCUMENT, words))
    return " ".join([rights] + more.split())


def send(connection, *words):
    """The reply as it arrives; a short one arrives as a whole."""
    words = [str(w).encode() for w in words]
    connection.sendall(b"*%d\r\n" % len(words) +
                       b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
    return connection.recv(65536)


class Redis(Server):
    """One server. Persistent: it has every confirmed write after it was killed."""

    name = "redis"

    def __init__(self, folder, persistent=True, config="", sentinel=False):
        super().__init__(folder)
        self.persistent = persistent
        self.config = config
        self.sentinel = sentinel
        self.port = free_port()
        self.log = os.path.join(folder, "log")
        self.file = os.path.join(folder, "redis.conf")

    def write_config(self):
        with open(self.file, "w", encoding="utf-8") as f:
            f.write("bind 127.0.0.1\nport %d\ndir %s\nloglevel warning\n" % (self.port, self.folder))
            if not self.sentinel:
                f.write('save ""\n')
                f.write("appendonly yes\nappendfsync always\n" if self.persistent else
                        "appendonly no\n")
            f.write(self.config)

    def start(self, *options):
        if not os.path.exists(self.file):  # a Sentinel writes into it
            self.write_config()
        binary = shutil.which("redis-server") or shutil.which("valkey-server") or "redis-server"
        self.process = spawn([binary, self.file] + (["--sentinel"] if self.sentinel else []) +
                             list(options), self.log, **clock_ahead(self.ahead_s))
        self.await_answer()

    def connect(self, seconds=2):
        return socket.create_connection(("127.0.0.1", self.port), seconds)

    ask = staticmethod(send)

    def command(self, *words, first=()):
        """The reply to a command; first: one to send before it on the same connection."""
        with self.connect(15) as connection:
            if first:
                send(connection, *first)
            return send(connection, *words)

    def answers(self):
        """True also if clients must give a password first."""
        try:
            with self.connect() as connection:
                reply = send(connection, "PING")
                return b"PONG" in reply or b"NOAUTH" in reply
        except OSError:
            return False

    def url(self, port=None):
        return "redis://127.0.0.1:%d" % (port or self.port)

    def nodes(self):
        return [self]

    def environment(self, port=None):
        """The variables that tests/redis needs: the folder, the server that has the data, all servers with
        Sentinels last, and the documented rights."""
        nodes = self.nodes()
        return {"REDIS_TEST_DIR": self.folder, "REDIS_TEST_PORT": str(nodes[0].port),
                "REDIS_TEST_PORTS": ",".join(str(n.port) for n in nodes),
                "REDIS_TEST_PIDS": ",".join(str(n.process.pid) for n in nodes),
                "REDIS_TEST_SERVERS": str(sum(not n.sentinel for n in nodes)),
                "REDIS_TEST_RIGHTS": documented_rights(self.name)}

    def await_replicas(self, count):
        """Waits until the replicas receive writes: after "online" alone, they may get nothing for a second."""
        for _ in range(300):
            if self.command("INFO", "replication").count(b"state=online") == count:
                break
            time.sleep(0.1)
        if self.command("WAIT", count, 10000, first=("PUBLISH", "up", "1")) != b":%d\r\n" % count:
            raise RuntimeError("the replicas do not come up")


class RedisUnix(Redis):
    """A server behind a socket in the file system."""

    name = "redis-unix"

    def __init__(self, folder):
        self.path = os.path.join(folder, "redis.sock")
        super().__init__(folder, False, "unixsocket %s\nunixsocketperm 700\n" % self.path)

    def url(self, port=None):
        return "redis+unix://" + self.path


class RedisTls(Redis):
    """With a client certificate and a user that has the documented rights."""

    name = "redis-tls"

    def __init__(self, folder):
        self.tls_port = free_port()
        super().__init__(folder, False, (
            f"tls-port {self.tls_port}\ntls-cert-file {folder}/server.pem\n"
            f"tls-key-file {folder}/server.key\ntls-ca-cert-file {folder}/ca.pem\n"
            f"tls-auth-clients yes\nuser locker on >pw-marker-s3cret {documented_rights(self.name)}\n"))

    def start(self, *options):
        if not os.path.exists(self.file):
            certificates(self.folder)
        super().start(*options)

    def url(self, port=None):
        return (f"rediss://locker:pw-marker-s3cret@localhost:{self.tls_port}?tls_ca={self.folder}/ca.pem"
                f"&tls_cert={self.folder}/client.pem&tls_key={self.folder}/client.key")


class RedisGroup(Redis):
    """Several servers; `port` is that of the one that has the data."""

    def __init__(self, folder):
        Server.__init__(self, folder)
        self.members = []

    def add(self, name, config, sentinel=False, ahead_s=0):
        place = os.path.join(self.folder, name)
        os.mkdir(place)
        node = Redis(place, False, config, sentinel)
        node.name = name
        node.ahead_s = ahead_s
        node.start()
        self.members.append(node)
        return node

    def nodes(self):
        return self.members

    def node(self, port):
        return next(n for n in self.members if n.port == port)

    def stop(self):
        for node in self.members:
            if node.process is not None and node.process.poll() is None:
                node.kill()


class RedisReplicas(RedisGroup):
    """A primary and a replica; writes wait for it."""

    name = "redis-replicas"

    def start(self, *_):
        primary = self.add("primary", REPLICA)
        self.add("replica", "replicaof 127.0.0.1 %d\n" % primary.port)
        primary.await_replicas(1)
        self.port = primary.port

    def url(self, port=None):
        return "redis://127.0.0.1:%d?wait_replicas=1" % self.port


class Sentinel(RedisGroup):
    """A primary with two replicas and three Sentinels."""

    name = "redis-sentinel"

    def start(self, *_):
        primary = self.add("primary", REPLICA)
        self.port = primary.port
        for i in range(2):
            self.add("replica%d" % i, "replicaof 127.0.0.1 %d\n%s" % (self.port, REPLICA),
                     ahead_s=self.spares_ahead_s)
        primary.await_replicas(2)
        config = ("sentinel monitor main 127.0.0.1 %d 2\n"
                  "sentinel down-after-milliseconds main 1000\n"
                  "sentinel failover-timeout main 5000\n" % self.port)
        self.sentinels = [self.add("sentinel%d" % i, config, sentinel=True) for i in range(3)]
        for _ in range(300):  # until the Sentinels know each other and the replicas
            replies = [s.command("SENTINEL", "MASTER", "main") for s in self.sentinels]
            if all(b"num-other-sentinels\r\n$1\r\n2" in r and b"num-slaves\r\n$1\r\n2" in r
                   for r in replies):
                return
            time.sleep(0.1)
        raise RuntimeError("the Sentinels do not find each other")

    def url(self, port=None):
        return "redis+sentinel://%s/main" % ",".join("127.0.0.1:%d" % s.port for s in self.sentinels)

    def primary(self):
        """The port that all of the Sentinels name, or None."""
        named = {s.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main").split(b"\r\n")[4]
                 for s in self.sentinels}
        return int(named.pop()) if len(named) == 1 else None

    def fail_over(self):
        """Kills the primary; returns when all Sentinels name another one, which takes writes."""
        old = self.node(self.port)
        old.kill()
        end = time.monotonic() + 30
        new = None
        while time.monotonic() < end:
            new = self.primary()
            if new not in (None, old.port) and b"role:master" in self.node(new).command(
                    "INFO", "replication"):
                break
            time.sleep(0.02)
        self.port = new
        return lambda: old.start("--replicaof", "127.0.0.1", str(new))


class Cluster(RedisGroup):
    """Three primaries with a replica each. All locks are in one hash slot."""

    name = "redis-cluster"

    def start(self, *_):
        config = ("cluster-enabled yes\ncluster-node-timeout 2000\n"
                  "cluster-replica-validity-factor 0\ncluster-allow-replica-migration no\n" + REPLICA)
        for i in range(6):
            self.add("node%d" % i, config)
        self.primaries = self.members[:3]
        third = 16384 // 3
        for i, node in enumerate(self.members):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < 3:
                node.command("CLUSTER", "ADDSLOTSRANGE", i * third,
                             16383 if i == 2 else (i + 1) * third - 1)
            node.command("CLUSTER", "MEET", "127.0.0.1", self.members[0].port)
        self.await_all(b"cluster_known_nodes:6")
        for replica, primary in zip(self.members[3:], self.primaries):
            replica.command("CLUSTER", "REPLICATE", self.node_id(primary))
        for primary in self.primaries:
            primary.await_replicas(1)
        self.await_all(b"cluster_state:ok")
        self.hash_slot = int(self.members[0].command("CLUSTER", "KEYSLOT", "{syncguard}")[1:])
        self.port = self.owner().port

    def await_all(self, word):
        for i in range(400):
            late = [n for n in self.members if word not in n.command("CLUSTER", "INFO")]
            if not late:
                return
            if i % 30 == 29:  # on a busy machine CLUSTER MEET may have no effect
                for node in late:
                    node.command("CLUSTER", "MEET", "127.0.0.1", self.members[0].port)
            time.sleep(0.1)
        raise RuntimeError("the cluster does not come up")

    def url(self, port=None):
        return "redis+cluster://" + ",".join("127.0.0.1:%d" % n.port for n in self.primaries)

    @staticmethod
    def node_id(node):
        return node.command("CLUSTER", "MYID").split()[1].decode()

    def owner(self):
        """The node that reports itself as the owner of the hash slot, or None."""
        for node in self.members:
            if node.process.poll() is not None:
                continue
            for line in node.command("CLUSTER", "NODES").decode(errors="replace").splitlines():
                if "myself,master" not in line:
                    continue
                ranges = [w.split("-") for w in line.split()[8:] if not w.startswith("[")]
                if any(int(r[0]) <= self.hash_slot <= int(r[-1]) for r in ranges):
                    return node
        return None

    def move_hash_slot(self, keys, pause):
        """To the next primary, a few keys at a time."""
        old = self.owner()
        new = self.primaries[(self.primaries.index(old) + 1) % 3]
        new_id = self.node_id(new)
        new.command("CLUSTER", "SETSLOT", self.hash_slot, "IMPORTING", self.node_id(old))
        old.command("CLUSTER", "SETSLOT", self.hash_slot, "MIGRATING", new_id)
        while True:
            answer = old.command("CLUSTER", "GETKEYSINSLOT", self.hash_slot, keys)
            names = answer.decode().split("\r\n")[2::2]
            if not names:
                break
            old.command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *names)
            time.sleep(pause)
        for node in [new, old] + self.primaries:
            node.command("CLUSTER", "SETSLOT", self.hash_slot, "NODE", new_id)
        self.port = new.port

    def fail_over(self):
        """Kills the node that owns the hash slot; returns when its replica has it."""
        old = self.node(self.port)
        old.kill()
        end = time.monotonic() + 30
        new = None
        while new is None and time.monotonic() < end:
            time.sleep(0.02)
            new = self.owner()
        self.port = new.port if new else None
        return old.start


class Seed(Cluster):
    """A Cluster whose clients are given one node only, the owner of the hash slot."""

    name = "redis-cluster-seed"

    def start(self, *_):
        super().start()
        self.seed = self.port

    def url(self, port=None):
        return "redis+cluster://127.0.0.1:%d" % self.seed
