"""Server processes: on a free loopback port, ended by their process id and with their parent.

A server gets a signal when the process that started it dies (PR_SET_PDEATHSIG), so that a test that
crashes or is killed leaves none behind. Its data are in a folder that the caller gives.
"""

import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

LIBC = ctypes.CDLL(None)
FAKETIME = "/usr/lib/%s-linux-gnu/faketime/libfaketimeMT.so.1" % os.uname().machine
PR_SET_PDEATHSIG = 1
# Below the ports that the kernel gives to clients. A node of a Redis Cluster also listens 10000 higher.
PORTS = range(12000, 22000)
RESERVED = []  # sockets whose names reserve a port for this process


def make_folder(prefix):
    """In memory where there is space: a killed process loses nothing of it, and the syncs
    of a busy disk are not measured."""
    memory = "/dev/shm"
    roomy = os.path.isdir(memory) and shutil.disk_usage(memory).free > 1 << 30
    folder = tempfile.mkdtemp(prefix=prefix, dir=memory if roomy else None)
    os.chmod(folder, 0o755)  # PostgreSQL runs as another user
    return folder


def free_port():
    """A port on which no process listens, and which no other caller of this function gets while
    this process lives: an abstract socket carries its number."""
    while True:
        port = random.choice(PORTS)
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind("\0syncguard-test-port-%d" % port)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            name.close()
            continue
        RESERVED.append(name)
        return port


def server_user():
    """Arguments for Popen: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid,
            "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid)}


def clock_ahead(seconds):
    """Arguments for Popen: the wall clock of the program and its children is ahead."""
    if seconds == 0:
        return {}
    if not os.path.exists(FAKETIME):
        raise RuntimeError("libfaketime is missing: no clock would be ahead")
    # The allocator of Redis asks for the time before libfaketime can answer: libc comes first.
    return {"env": dict(os.environ, LD_PRELOAD=FAKETIME + " libc.so.6", FAKETIME="%+ds" % seconds,
                        FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1")}


def end_with_parent(number=signal.SIGKILL):
    """For preexec_fn: the child gets this signal when the process that starts it dies."""
    parent = os.getpid()

    def in_child():
        LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def spawn(arguments, log, signal_at_death=signal.SIGKILL, **more):
    """Starts a server that ends with this process. Its output goes to the file log."""
    with open(log, "ab") as output:
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                cwd="/", preexec_fn=end_with_parent(signal_at_death), **more)


def wait_until_stopped(pid):
    """On a busy machine a thread that was running may go on for a moment after SIGSTOP was sent."""
    tasks = "/proc/%d/task" % pid
    for _ in range(2000):
        states = []
        for task in os.listdir(tasks) if os.path.isdir(tasks) else ():
            try:
                with open(os.path.join(tasks, task, "stat"), encoding="utf-8", errors="replace") as stat:
                    states.append(stat.read().rpartition(")")[2].split()[0])
            except OSError:
                pass  # it ended meanwhile
        if all(state in "TtZX" for state in states):
            return
        time.sleep(0.001)


class Server:
    """A server process that can be killed, stopped and started again.

    Subclasses start it; `log` is the file with its output. Its wall clock is ahead_s ahead of that
    of the machine; those that can take over from the first one of a group are spares_ahead_s ahead."""

    name = None
    ahead_s = 0
    spares_ahead_s = 0
    process = None
    port = None
    log = os.devnull

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        raise NotImplementedError

    def setup(self, build):
        """Prepares the store for its clients; build: the folder with the command."""

    def answers(self):
        raise NotImplementedError

    def await_answer(self, seconds=60):
        end = time.monotonic() + seconds
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                with open(self.log, encoding="utf-8", errors="replace") as log:
                    raise RuntimeError("%s does not start: %s" % (self.name, log.read()[-4000:]))
            time.sleep(0.02)

    def url(self, port=None):
        """port: of a proxy in front of it."""
        raise NotImplementedError

    def environment(self, port=None):
        """Variables that clients need beside the URL."""
        return {}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
