#!/usr/bin/env python3
"""`syncguard run` and `acquire` wait while the server is down or does not answer.

    down.py BUILD STORE
"""
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402

KINDS = {"redis": servers.Redis, "postgres": servers.Postgres,
         "firestore": lambda folder: servers.FakeFirestore(folder, "--port", str(servers.free_port()))}
faults = []


def check(text, condition):
    if not condition:
        faults.append(text)
        print("FAILED: " + text)


def heed_interrupts():
    """A job in the background of a shell may have been told to ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Waiter:
    def __init__(self, server, folder, *words, timeout_ms=1000):
        self.log = os.path.join(folder, "log")
        environment = dict(os.environ, **server.environment(),
                           SYNCGUARD_URL="%s?timeout_ms=%d" % (server.url(), timeout_ms))
        self.process = subprocess.Popen([os.path.join(BUILD, "syncguard"), *words], env=environment,
                                        stdout=subprocess.DEVNULL, stderr=open(self.log, "w"),
                                        stdin=subprocess.DEVNULL, preexec_fn=heed_interrupts)

    def says(self, text, seconds=30):
        end = time.monotonic() + seconds
        while text not in open(self.log).read():
            if time.monotonic() > end or self.process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def connects(self, seconds=30):
        """Waits until the command has a socket, and a little longer: then it is in its first attempt."""
        end = time.monotonic() + seconds
        while not any(name.startswith("socket:") for name in self.open_files()):
            if time.monotonic() > end or self.process.poll() is not None:
                return False
            time.sleep(0.05)
        time.sleep(1)
        return self.process.poll() is None

    def open_files(self):
        folder = "/proc/%d/fd" % self.process.pid
        names = []
        try:
            for number in os.listdir(folder):
                names.append(os.readlink(os.path.join(folder, number)))
        except OSError:
            pass  # the descriptor was closed meanwhile, or the process has ended
        return names

    def ends(self, seconds=30):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "it hangs"


def waits(server, folder, what, again):
    """Both commands keep trying, report that, and get the lock when the server is back."""
    run = Waiter(server, folder, "run", "-v", "k", "--", "true")
    check("%s: run says what it waits for" % what, run.says("still trying"))
    time.sleep(2.5)
    check("%s: run waits on" % what, run.process.poll() is None)
    acquire = Waiter(server, folder, "acquire", "-v", "other-%d" % time.monotonic_ns())
    check("%s: acquire says what it waits for" % what, acquire.says("still trying"))
    for number in (signal.SIGINT, signal.SIGTERM):
        stopped = Waiter(server, folder, "run", "-v", "k", "--", "true")
        check("%s: says what it waits for" % what, stopped.says("still trying"))
        begun = time.monotonic()
        stopped.process.send_signal(number)
        check("%s: signal %d ends it" % (what, number), stopped.ends() == -number)
        check("%s: soon" % what, time.monotonic() - begun < 4)
    short = Waiter(server, folder, "run", "-w", "2s", "-E", "0", "k", "--", "true")
    check("%s: -w ends with 69, not with -E" % what, short.ends() == 69)
    again()
    check("%s: run has its turn" % what, run.ends() == 0)
    check("%s: so has acquire" % what, acquire.ends() == 0)


def interrupted(server, folder):
    """Ctrl-C does not wait for the end of an attempt, here of 30 s."""
    for words in (("run", "k", "--", "true"), ("acquire", "k")):
        stopped = Waiter(server, folder, *words, timeout_ms=30000)
        check("a long attempt: %s is in it" % words[0], stopped.connects())
        stopped.process.send_signal(signal.SIGINT)
        code = stopped.ends(10)  # as a shell shows it: 130
        check("a long attempt: SIGINT ends %s, %s" % (words[0], code), code == -signal.SIGINT)


def main():
    folder = servers.make_folder("syncguard-down-")
    place = os.path.join(folder, "store")
    os.mkdir(place)
    server = KINDS[sys.argv[2]](place)
    try:
        server.start()
        subprocess.run([os.path.join(BUILD, "syncguard"), "setup", "-b", server.url()], check=True,
                       env=dict(os.environ, **server.environment()))
        server.stop()
        waits(server, folder, "down", server.start)
        server.pause()
        interrupted(server, folder)
        waits(server, folder, "hanging", server.resume)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print("%d faults" % len(faults))
    return 1 if faults else 0


BUILD = os.path.abspath(sys.argv[1])
if __name__ == "__main__":
    sys.exit(main())
