"""The Lock of redis-py; reads and prints as node.cjs does. Run by Debian's own Python."""
import random
import statistics
import sys
import threading
import time

import redis

PORT = int(sys.argv[1])
CLIENTS = [redis.Redis(port=PORT), redis.Redis(port=PORT)]


def lock(which, key):
    return CLIENTS[which].lock(key, timeout=30, thread_local=False)


def pair(count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        held = lock(0, "peer")
        held.acquire()
        held.release()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def rate(workers):
    pairs = [0] * workers
    start = time.perf_counter()

    def work(number):
        while time.perf_counter() - start < 1:
            held = lock(0, "peer:%d" % number)
            held.acquire()
            held.release()
            pairs[number] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(pairs) / (time.perf_counter() - start)


def handover(turns):
    times = []
    for _ in range(turns):
        held = lock(0, "peer")
        held.acquire()
        waiter = lock(1, "peer")
        got = []
        thread = threading.Thread(target=lambda w=waiter, g=got: (w.acquire(),
                                                                  g.append(time.perf_counter())))
        thread.start()
        time.sleep(0.03 + random.random() / 10)
        released = time.perf_counter()
        held.release()
        thread.join()
        times.append((got[0] - released) * 1e6)
        waiter.release()
    return statistics.median(times)


for line in sys.stdin:
    what, _, number = line.split()
    print("%.2f" % {"pair": pair, "rate": rate, "handover": handover}[what](int(number)),
          flush=True)
