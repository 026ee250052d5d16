"""The only place that starts and stops servers for tests, benchmarks and fault runs.

Servers listen on free loopback ports, keep their data in the folder that they are given, and end with
the process that started them. `make` knows them by name; README.md describes the command.
"""

from .firestore import EMULATOR_PORT, PACKAGE, FakeFirestore, Firestore, SharedFirestore
from .folder import Folder
from .postgres import (Bouncer, Postgres, PostgresPair, PostgresTls, PostgresUnix, Restricted,
                       Serializable, SerializableBouncer)
from .process import FAKETIME, Server, end_with_parent, free_port, make_folder
from .redis import Cluster, Redis, RedisReplicas, RedisTls, RedisUnix, Seed, Sentinel
from .sqlite import Sqlite

STORES = {
    "sqlite": Sqlite,
    "dir": Folder,
    "redis": Redis,
    "redis-volatile": lambda folder: Redis(folder, persistent=False),
    "redis-unix": RedisUnix,
    "redis-tls": RedisTls,
    "redis-replicas": RedisReplicas,
    "redis-sentinel": Sentinel,
    "redis-cluster": Cluster,
    "redis-cluster-seed": Seed,
    "postgres": Postgres,
    "postgres-unix": PostgresUnix,
    "postgres-tls": PostgresTls,
    "postgres-serializable": Serializable,
    "postgres-restricted": Restricted,
    "postgres-bouncer": SerializableBouncer,
    "postgres-unannounced": lambda folder: SerializableBouncer(folder, announced=False),
    "postgres-pooled-session": lambda folder: Bouncer(folder, "session"),
    "postgres-pooled-transaction": lambda folder: Bouncer(folder, "transaction"),
    "postgres-pooled-statement": lambda folder: Bouncer(folder, "statement"),
    "postgres-standby": PostgresPair,
    "firestore": Firestore,
    "firestore-fake": FakeFirestore,
}


def make(name, folder):
    """A server, not started yet."""
    return STORES[name](folder)
