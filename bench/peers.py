#!/usr/bin/env python3
"""Other lock libraries on the same Redis, in turns with ours.

    peers.py BUILD [REPETITIONS]

The npm packages are installed into a folder that is removed afterwards. What they do has no
fences, and none of it is woken by the server. The server has the first processor, all clients
the last.
"""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ["redis-semaphore@5", "redlock@5.0.0-beta.2", "ioredis@5"]
WORKERS = 64
PAIRS = 500
TURNS = 15


class Peer:
    """A program that answers one number per line."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=dict(os.environ, **(environment or {})))

    def ask(self, what, number):
        self.process.stdin.write("%s %s %d\n" % (what, self.name, number))
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)


def start(folder, port):
    """The peers that this machine can run."""
    peers = []
    place = os.path.join(folder, "npm")
    os.makedirs(place, exist_ok=True)
    if shutil.which("npm") and subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", place] + PACKAGES,
            check=False, stdout=subprocess.DEVNULL).returncode == 0:
        program = shutil.copy(os.path.join(HERE, "peers", "node.cjs"), place)
        peers += [Peer(name, ["node", program, str(port)]) for name in ("redis-semaphore",
                                                                        "redlock")]
    else:
        print("peers.py: the npm packages cannot be installed, left out", file=sys.stderr)
    if os.path.isdir("/usr/lib/python3/dist-packages/redis"):
        peers.append(Peer("redis-py", ["/usr/bin/python3", os.path.join(HERE, "peers",
                                                                       "redis_py.py"), str(port)]))
    else:
        print("peers.py: no python3-redis, left out", file=sys.stderr)
    return peers


def ours(build, folder, url, what, number):
    command = [os.path.join(build, "syncguard-bench")]
    if what == "handover":
        done = subprocess.run(command + ["--json", "--repeat", "1", "-b", url, "handover"],
                              check=False, capture_output=True, text=True, cwd=folder)
        return json.loads(done.stdout.splitlines()[0])["measured"]
    done = subprocess.run(command + ["--ask", what, str(number)], check=True, capture_output=True,
                          text=True, env=dict(os.environ, SYNCGUARD_BENCH_URL=url))
    return float(done.stdout)


@contextlib.contextmanager
def pinned(server):
    """The server has a processor, this process and all that it starts meanwhile another."""
    before = os.sched_getaffinity(0)
    if len(before) > 1:
        os.sched_setaffinity(server, {min(before)})
        os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        os.sched_setaffinity(server, before)


def figures(build, folder, redis, repetitions, figure_of):
    """Ours as measured, theirs as the limit."""
    with pinned(redis.process.pid):
        return measure(build, folder, redis, repetitions, figure_of)


def measure(build, folder, redis, repetitions, figure_of):
    peers = start(folder, redis.port)
    result = []
    for what, number, name, unit in (("pair", PAIRS, "pair, p50", "us"),
                                     ("rate", WORKERS, "pairs/s, 64 workers", "/s"),
                                     ("handover", TURNS, "hand-over, p50", "us")):
        rounds = repetitions if what != "handover" else 1
        mine = []
        theirs = {peer.name: [] for peer in peers}
        for _ in range(rounds):
            mine.append(ours(build, folder, redis.url(), what, number))
            for peer in peers:
                theirs[peer.name].append(peer.ask(what, number))
        for peer in peers:
            judged = what == "rate" and peer.name == "redis-semaphore"
            result.append(figure_of("peers", name, unit, mine, theirs[peer.name], peer.name,
                                    1.1 if judged else None, least=True))
    for peer in peers:
        peer.end()
    return result


def main():
    sys.path.insert(0, HERE)
    import run
    build = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="syncguard-peers.", dir="/var/tmp")
    os.mkdir(os.path.join(folder, "redis"))
    redis = run.servers.make("redis-volatile", os.path.join(folder, "redis"))
    try:
        redis.start()
        repetitions = int(sys.argv[2]) if len(sys.argv) > 2 else 5
        for figure in figures(build, folder, redis, repetitions, run.figure_of) + \
                run.command_figures(build, folder, redis, repetitions):
            print("%-20s ours %10.5g %-3s %16s %10.5g, ratio %.3f %s" % (
                figure["figure"], figure["measured"], figure["unit"], figure["against"],
                figure["limit"], figure["ratio"], run.verdict(figure)))
    finally:
        redis.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
