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

KINDS = {"redis": servers.Redis, "postgres": servers.Postgres}
faults = []


def check(text, condition):
    if not condition:
        faults.append(text)
        print("FAILED: " + text)


class Waiter:
    def __init__(self, server, folder, *words):
        url = server.url()
        self.log = os.path.join(folder, "log")
        environment = dict(os.environ, SYNCGUARD_URL=url + "?timeout_ms=1000")
        self.process = subprocess.Popen([os.path.join(BUILD, "syncguard"), *words], env=environment,
                                        stdout=subprocess.DEVNULL, stderr=open(self.log, "w"),
                                        stdin=subprocess.DEVNULL)

    def says(self, text, seconds=30):
        end = time.monotonic() + seconds
        while text not in open(self.log).read():
            if time.monotonic() > end or self.process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def ends(self, seconds=30):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "it hangs"


def waits(server, folder, what, again):
    """Both commands keep trying, say so, and have the lock when the server is back."""
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


def main():
    folder = servers.make_folder("syncguard-down-")
    place = os.path.join(folder, "store")
    os.mkdir(place)
    server = KINDS[sys.argv[2]](place)
    try:
        server.start()
        subprocess.run([os.path.join(BUILD, "syncguard"), "setup", "-b", server.url()], check=True)
        server.stop()
        waits(server, folder, "down", server.start)
        server.pause()
        waits(server, folder, "hanging", server.resume)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print("%d faults" % len(faults))
    return 1 if faults else 0


BUILD = os.path.abspath(sys.argv[1])
if __name__ == "__main__":
    sys.exit(main())
