"""Runs the epoll server: who waits, who gives up, who is next, and what SIGTERM leaves."""
import signal
import socket
import subprocess
import sys

WAITERS = 200


def connect(port, key):
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(key.encode() + b"\n")
    return client


def answer(client):
    return client.makefile().readline().strip()


def closed(client):
    try:
        return client.recv(100) == b""
    except ConnectionResetError:  # before the server had read its line
        return True


def main():
    server = subprocess.Popen([sys.argv[1], "memory:"], stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline().split()[1])
        first = connect(port, "k")
        assert answer(first) == "granted 000000000000001", "the first has it"
        gives_up = connect(port, "k")
        second = connect(port, "k")
        other = connect(port, "other")
        assert answer(other).startswith("granted"), "another key does not wait"
        gives_up.close()
        first.close()
        assert answer(second) == "granted 000000000000002", "the next has it, not the one that left"
        refused = connect(port, "")
        assert answer(refused).startswith("refused"), "an empty key"
        crowd = [connect(port, "k") for _ in range(WAITERS)]
        threads = next(line for line in open("/proc/%d/status" % server.pid, encoding="ascii")
                       if line.startswith("Threads:"))
        assert int(threads.split()[1]) < 20, threads
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0, "ends by itself"
        assert all(closed(client) for client in crowd + [second, other]), "all are told"
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


main()
