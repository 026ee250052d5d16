"""Servers for one C program, which asks for them line by line: see client.h.

A request is a verb and words with tabs between them; the reply is "ok NUMBER PORT PID FOLDER" of the server, or "error"
and a text. At the end of the input all servers are stopped and their folder is removed.
"""

import os
import shutil
import signal
import subprocess
import sys

from .firestore import FakeFirestore
from .postgres import PgBouncer, Postgres
from .process import make_folder
from .redis import Redis


class Keeper:
    def __init__(self):
        self.folder = make_folder("syncguard-servers-")
        self.servers = []

    def place(self):
        """A folder for the next server."""
        place = os.path.join(self.folder, str(len(self.servers)))
        os.mkdir(place)
        return place

    def add(self, server, start=None):
        self.servers.append(server)
        (start or server.start)()
        return server

    def fake_firestore(self, *arguments):
        return self.add(FakeFirestore(self.place(), *arguments))

    def redis(self, *options):
        server = Redis(self.place(), persistent=False)
        return self.add(server, lambda: server.start(*options))

    def redis_again(self, number, port, *options):
        """At the same or another port, with its data."""
        server = self.servers[int(number)]
        server.port = int(port)
        server.start("--port", port, *options)
        return server

    def postgres(self, *settings):
        return self.add(Postgres(self.place(), settings))

    def standby(self, number, *settings):
        server = Postgres(self.place(), settings)
        server.name = "standby"
        return self.add(server, lambda: (server.copy(self.servers[int(number)]), server.start()))

    def postgres_again(self, number, *settings):
        server = self.servers[int(number)]
        server.settings = settings
        server.start()
        return server

    def bouncer(self, number, user, *settings):
        """PgBouncer in transaction mode with four sessions in front of a server."""
        return self.add(PgBouncer(self.place(), self.servers[int(number)].port, "transaction", 4, user,
                                  "".join(line + "\n" for line in settings)))

    def down(self, number, sent):
        server = self.servers[int(number)]
        if int(sent) == signal.SIGKILL:
            server.kill()
        else:
            server.process.send_signal(signal.SIGCONT)
            server.process.send_signal(int(sent))
            server.process.wait()
        return server

    def end(self, number):
        server = self.servers[int(number)]
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)
        return server

    def answer(self, line):
        verb, *words = line.rstrip("\n").split("\t")
        try:
            server = getattr(self, verb)(*words)
        except (OSError, RuntimeError, AttributeError, TypeError,
                subprocess.CalledProcessError) as error:
            return "error %s" % " ".join(str(error).split())
        return "ok %d %d %d %s" % (self.servers.index(server), server.port, server.process.pid,
                                   server.folder)

    def close(self):
        for server in self.servers:
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def main():
    keeper = Keeper()
    try:
        for line in sys.stdin:
            print(keeper.answer(line), flush=True)
    finally:
        keeper.close()
    return 0
