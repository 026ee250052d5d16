#!/usr/bin/env python3
"""The stale holder, on every store.

    stale.py --build DIR [--stores a,b]

A holder is stopped past its lease; another takes over; the first wakes and
writes. The fenced resource refuses it, its handle says lost, and `syncguard run`
in the same place ends its child and exits with 76.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run  # noqa: E402

TTL_MS = 1500


class Failed(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Failed(what)


def holder(build, url, environment, resource):
    process = subprocess.Popen(
        [os.path.join(build, "tests/fault/fault_holder"), url, "stale", str(TTL_MS), resource],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    words = process.stdout.readline().split()
    need(words[:1] == ["held"] and words[2:] == ["accepted"], "a holder began with %s" % words)
    return process, int(words[1])


def ask(process):
    process.stdin.write("write\n")
    process.stdin.flush()
    return process.stdout.readline().split()


def end(process):
    process.stdin.close()
    code = process.wait(60)
    process.stdout.close()
    need(code == 0, "a holder ended with %d" % code)


def stale_handle(build, url, environment, folder):
    resource = os.path.join(folder, "resource")
    first, early = holder(build, url, environment, resource)
    processes = [first]
    try:
        first.send_signal(signal.SIGSTOP)
        second, late = holder(build, url, environment, resource)  # waits for the lease to end
        processes.append(second)
        need(late > early, "the fence did not rise: %d after %d" % (late, early))
        first.send_signal(signal.SIGCONT)
        answer = ask(first)
        need(answer == ["refused", "lost"], "the stale holder was told %s" % answer)
        answer = ask(second)
        need(answer == ["accepted", "held"], "the new holder was told %s" % answer)
        end(first)
        answer = ask(second)
        need(answer == ["accepted", "held"], "the stale one's end cost the new one its lock")
        end(second)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


def stale_command(build, url, environment, folder):
    tool = os.path.join(build, "syncguard")
    mark = os.path.join(folder, "mark")
    # The child is stopped too, as on a frozen machine; it would write when it is continued.
    runner = subprocess.Popen(
        [tool, "run", "-b", url, "--ttl", "%dms" % TTL_MS, "command", "--", "sh", "-c",
         "echo $$ >%s; while :; do sleep 0.1; done" % mark], env=environment,
        stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 30
        while not (os.path.exists(mark) and os.path.getsize(mark)):
            need(time.monotonic() < limit and runner.poll() is None, "the command did not start")
            time.sleep(0.02)
        child = int(open(mark).read())
        runner.send_signal(signal.SIGSTOP)
        taken = subprocess.run([tool, "run", "-b", url, "-w", "40s", "command", "--", "true"],
                               env=environment, check=False)
        need(taken.returncode == 0, "no other holder took over: %d" % taken.returncode)
        runner.send_signal(signal.SIGCONT)
        code = runner.wait(60)
        need(code == 76, "run ended with %d" % code)
        limit = time.monotonic() + 10
        while os.path.exists("/proc/%d" % child):
            need(time.monotonic() < limit, "its child goes on")
            time.sleep(0.02)
    finally:
        if runner.poll() is None:
            runner.send_signal(signal.SIGCONT)
            runner.kill()
            runner.wait()


def try_store(options, name):
    folder = run.servers.make_folder("syncguard-stale-")
    place = os.path.join(folder, "store")
    os.mkdir(place)
    store = run.make_store(name, place)
    store.start()
    try:
        cell = run.Cell(options, store, folder)
        run.prepare(cell, None)
        environment = dict(os.environ, **store.environment())
        stale_handle(options.build, store.url(), environment, folder)
        stale_command(options.build, store.url(), environment, folder)
        print("%-10s the stale holder is refused, its handle says lost, run exits 76" % name,
              flush=True)
        return True
    except Failed as error:
        print("%-10s FAILED: %s" % (name, error), flush=True)
        return False
    finally:
        store.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--stores", default="sqlite,redis,postgres,firestore")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    options.seed = 1
    good = [try_store(options, name) for name in options.stores.split(",")]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers
    sys.exit(main())
