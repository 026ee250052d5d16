"""PostgreSQL: one server, with other settings, over a socket or TLS, behind PgBouncer, with a standby."""

import glob
import os
import shutil
import signal
import subprocess
import time
from urllib.parse import quote

from .certificates import certificates
from .process import Server, clock_ahead, free_port, server_user, spawn, wait_until_stopped

# Only READ COMMITTED may write locks and counters.
CHECK_LEVEL = """CREATE FUNCTION check_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF current_setting('transaction_isolation') <> 'read committed' THEN
RAISE 'written as %', current_setting('transaction_isolation'); END IF;
RETURN coalesce(NEW, OLD); END $$"""
TRIGGER = ("CREATE TRIGGER level BEFORE INSERT OR UPDATE OR DELETE ON %s "
           "FOR EACH ROW EXECUTE FUNCTION check_level()")


def program(name):
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    return os.path.join(folders[-1], name) if folders else name


def is_ready(port):
    return subprocess.run([program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)],
                          check=False).returncode == 0


def runs(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Postgres(Server):
    """Trusts every connection. Settings: "name=value" each."""

    name = "postgres"
    role = "postgres"

    def __init__(self, folder, settings=()):
        super().__init__(folder)
        self.data = os.path.join(folder, "data")
        self.log = os.path.join(folder, "log")
        self.settings = settings
        self.port = free_port()

    def run(self, *arguments):
        with open(self.log, "ab") as log:
            subprocess.run(arguments, check=True, cwd="/", stdout=log, stderr=log, **server_user())

    def own_folder(self):
        os.chmod(self.folder, 0o755)
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")

    def make(self):
        self.own_folder()
        self.run(program("initdb"), "-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync",
                 "-E", "UTF8", "--locale=C", "--wal-segsize=1")

    def copy(self, primary):
        """Instead of make: a standby that follows a running server."""
        self.own_folder()
        self.run(program("pg_basebackup"), "-D", self.data, "-h", "127.0.0.1", "-p",
                 str(primary.port), "-U", "postgres", "-R", "-c", "fast", "--no-sync")

    def start(self):
        if not os.path.exists(self.data):
            self.make()
        settings = ["listen_addresses=127.0.0.1", "max_connections=300",
                    "unix_socket_directories=" + self.folder, *self.settings]
        # SIGINT: it ends its sessions, and itself at once.
        self.process = spawn([program("postgres"), "-D", self.data, "-p", str(self.port)] +
                             [word for s in settings for word in ("-c", s)],
                             self.log, signal.SIGINT, **server_user(), **clock_ahead(self.ahead_s))
        self.await_answer()

    def answers(self):
        return is_ready(self.port)

    def sql(self, text):
        """The output of the statements, in separate transactions; empty if they fail."""
        return subprocess.run([program("psql"), "-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-p",
                               str(self.port), "-U", "postgres", "-c", text], check=False,
                              capture_output=True, text=True).stdout

    def execute(self, text):
        """The same for statements that must succeed."""
        done = subprocess.run([program("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h",
                               "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-c", text],
                              check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("%s: %s" % (text, done.stderr.strip()))
        return done.stdout

    def url(self, port=None):
        return "postgres://%s@127.0.0.1:%d/postgres" % (self.role, port or self.port)

    def setup(self, build):
        subprocess.run([os.path.join(build, "syncguard"), "setup", "-b",
                        "postgres://postgres@127.0.0.1:%d/postgres" % self.port],
                       check=True, stdout=subprocess.DEVNULL)

    def use_role(self, role, counters="SELECT, INSERT, UPDATE"):
        """Clients connect as a role that can only read and write rows; counters: its rights on the counters."""
        self.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        self.execute("CREATE ROLE %s LOGIN NOSUPERUSER" % role)
        self.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON syncguard_locks TO " + role)
        self.execute("GRANT %s ON syncguard_fence_counters TO %s" % (counters, role))
        self.role = role

    def make_serializable(self):
        """Sessions begin as serializable, but writes must not use that level."""
        self.sql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
        self.sql(CHECK_LEVEL)
        for table in ("syncguard_locks", "syncguard_fence_counters"):
            self.sql(TRIGGER % table)

    def _children(self):
        return [int(pid) for pid in subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], check=False, capture_output=True,
            text=True).stdout.split()]

    def _signal_all(self, number, pids):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self):
        """All of its processes, as a crash of the machine would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # so that it starts no more of them
        children = self._children()
        super().kill()
        self._signal_all(signal.SIGKILL, children)
        for _ in range(200):  # the next server does not start beside one of them
            if not any(runs(pid) for pid in children):
                break
            time.sleep(0.01)
        pid_file = os.path.join(self.data, "postmaster.pid")
        if os.path.exists(pid_file):
            os.unlink(pid_file)

    def pause(self):
        pids = [self.process.pid] + self._children()
        self._signal_all(signal.SIGSTOP, pids)
        for pid in pids:
            wait_until_stopped(pid)

    def resume(self):
        self._signal_all(signal.SIGCONT, [self.process.pid] + self._children())

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class Serializable(Postgres):
    name = "postgres-serializable"

    def setup(self, build):
        super().setup(build)
        self.make_serializable()


class Restricted(Postgres):
    name = "postgres-restricted"

    def setup(self, build):
        super().setup(build)
        self.use_role("worker")


class PostgresUnix(Postgres):
    """Clients use the socket in the file system."""

    name = "postgres-unix"

    def url(self, port=None):
        return "postgres://%s@/postgres?host=%s&port=%d" % (self.role, quote(self.folder), port or self.port)


class PostgresTls(Postgres):
    """Clients verify the certificate and the name of the server."""

    name = "postgres-tls"

    def __init__(self, folder):
        super().__init__(folder, ["ssl=on", "ssl_cert_file=%s/server.pem" % folder,
                                  "ssl_key_file=%s/server.key" % folder])

    def make(self):
        super().make()
        certificates(self.folder)
        if os.geteuid() == 0:
            for name in ("server.pem", "server.key"):
                shutil.chown(os.path.join(self.folder, name), "postgres", "postgres")

    def url(self, port=None):
        return ("postgres://%s@localhost:%d/postgres?sslmode=verify-full&sslrootcert=%s/ca.pem" %
                (self.role, port or self.port, quote(self.folder)))


class PgBouncer(Server):
    """In front of a server on this machine; its sessions are those of one user. more: lines of its configuration."""

    name = "PgBouncer"

    def __init__(self, folder, server_port, mode, pool_size, user="postgres", more=""):
        super().__init__(folder)
        self.port = free_port()
        self.log = os.path.join(folder, "pgbouncer.log")
        self.ini = os.path.join(folder, "pgbouncer.ini")
        self.config = ("[databases]\n* = host=127.0.0.1 port=%d user=%s\n[pgbouncer]\n"
                       "listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"
                       "auth_type = any\npool_mode = %s\ndefault_pool_size = %d\n"
                       "max_client_conn = 200\n%s" %
                       (server_port, user, self.port, mode, pool_size, more))

    def start(self):
        with open(self.ini, "w", encoding="utf-8") as f:
            f.write(self.config)
        binary = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self.process = spawn([binary, "-q", self.ini], self.log, **server_user())
        self.await_answer()

    def answers(self):
        return is_ready(self.port)


class Bouncer(Postgres):
    """PostgreSQL behind PgBouncer; pause, kill and start are the pooler's.

    Announced: the URL says that there is a pooler, where its mode needs that."""

    name = "postgres-pooled"

    def __init__(self, folder, mode, pool_size=20, announced=True, ignore_options=True):
        super().__init__(folder)
        self.query = "?pooler=1" if announced and mode != "session" else ""
        self.pooler = PgBouncer(folder, self.port, mode, pool_size, more=(
            "ignore_startup_parameters = options\n" if ignore_options else ""))

    def start(self):
        if self.process is None:
            super().start()
        self.pooler.start()

    def kill(self):
        self.pooler.kill()

    def stop(self):
        self.pooler.stop()
        super().stop()

    def url(self, port=None):
        return super().url(port or self.pooler.port) + self.query


class SerializableBouncer(Bouncer):
    """Four sessions in transaction mode, on a database that is serializable."""

    name = "postgres-bouncer"

    def __init__(self, folder, announced=True):
        super().__init__(folder, "transaction", 4, announced, not announced)
        if not announced:
            self.query = "?listen=0"

    def setup(self, build):
        super().setup(build)
        self.make_serializable()


class PostgresPair(Postgres):
    """A primary and a standby that confirms every commit that waits for it."""

    name = "postgres-standby"

    def __init__(self, folder):
        super().__init__(folder)
        self.standby = Postgres(os.path.join(folder, "standby"))
        self.standby.name = "standby"
        os.mkdir(self.standby.folder)

    def start(self):
        super().start()
        self.standby.copy(self)
        self.standby.ahead_s = self.spares_ahead_s
        self.standby.start()
        self.standby.sql("ALTER SYSTEM SET wal_retrieve_retry_interval = '200ms'")
        # Only now: without a standby every commit would wait.
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("ALTER SYSTEM SET wal_keep_size = '256MB'")  # for a standby that was away
        self.sql("SELECT pg_reload_conf()")
        while "sync" not in self.sql("SELECT sync_state FROM pg_stat_replication"):
            time.sleep(0.05)

    def promote(self):
        while "f" not in self.standby.sql("SELECT pg_is_in_recovery()"):
            self.standby.sql("SELECT pg_promote(true, 30)")

    def url(self, port=None):
        return "postgres://%s@127.0.0.1:%d,127.0.0.1:%d/postgres" % (self.role, self.port,
                                                                   self.standby.port)

    def stop(self):
        self.standby.stop()
        super().stop()
