"""Runs one of the servers (epoll, libuv; they are the same to a client): who waits, who gives up, who is next, and what SIGTERM leaves."""
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


def check_protocol(port):
    """A client that does not keep to the protocol is disconnected; its lock is free again."""
    refused = connect(port, "")
    assert answer(refused).startswith("refused"), "an empty key"
    assert closed(connect(port, "x" * 600)), "a line that is too long"
    for _ in range(2):
        talks_on = connect(port, "talks")
        assert answer(talks_on).startswith("granted"), "nobody else has it"
        talks_on.sendall(b"more\n")
        assert closed(talks_on), "one line per client"
    taken = subprocess.run([sys.argv[1], "memory:", str(port)], capture_output=True, text=True,
                           check=False, timeout=30)
    assert taken.returncode == 1 and taken.stderr, "a port that is taken"


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
        check_protocol(port)
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
