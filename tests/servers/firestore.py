"""Firestore: Google's emulator, and a fake server for behaviour that the emulator lacks."""

import atexit
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from .process import Server, free_port, spawn

PACKAGE = "google-cloud-cli-firestore-emulator"
EMULATOR_PORT = "SYNCGUARD_FAULT_EMULATOR_PORT"
HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = os.path.join(HERE, "fake_firestore.py")


class Firestore(Server):
    """The emulator."""

    name = "firestore"

    def __init__(self, folder):
        super().__init__(folder)
        self.port = free_port()
        self.log = os.path.join(folder, "emulator.log")

    @staticmethod
    def program():
        """Its start script, or None: SYNCGUARD_FIRESTORE_EMULATOR, or that of its package."""
        if shutil.which("java") is None:
            return None
        named = os.environ.get("SYNCGUARD_FIRESTORE_EMULATOR")
        if named or shutil.which("dpkg") is None:
            return named or shutil.which("cloud_firestore_emulator")
        listed = subprocess.run(["dpkg", "-L", PACKAGE], check=False, capture_output=True,
                                text=True).stdout.split("\n")
        found = [p for p in listed if p.endswith("/cloud_firestore_emulator")]
        return found[0] if found else shutil.which("cloud_firestore_emulator")

    def start(self):
        # The script's last command replaces it, so that there is one process to end. A server of
        # some minutes: compiling less is faster in the end.
        environment = dict(os.environ, JAVA="exec java",
                           JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        self.process = spawn([self.program(), "start", "--host=127.0.0.1", "--port=%d" % self.port],
                             self.log, env=environment)
        self.await_answer()
        self._warm()

    def answers(self):
        try:
            return self._call("batchGet", {"documents": [self.WARM]}) == 200
        except (OSError, http.client.HTTPException):
            return False

    WARM = "projects/warm/databases/(default)/documents/locks/warm"

    def _call(self, method, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/v1/projects/warm/databases/(default)/documents:" + method,
                               json.dumps(body), {"Authorization": "Bearer owner",
                                                  "Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def _warm(self):
        """The first requests of each kind take seconds in a fresh Java process."""
        query = {"structuredQuery": {"from": [{"collectionId": "locks"}], "where": {"fieldFilter": {
            "field": {"fieldPath": "lockId"}, "op": "EQUAL", "value": {"stringValue": "x"}}}}}
        for _ in range(30):
            self._call("commit", {"writes": [{"update": {"name": self.WARM, "fields": {}}}]})
            self._call("batchGet", {"documents": [self.WARM]})
            self._call("runQuery", query)
        self._call("commit", {"writes": [{"delete": self.WARM}]})

    def url(self, port=None):
        return "firestore://fault-run"

    def environment(self, port=None):
        return {"FIRESTORE_EMULATOR_HOST": "127.0.0.1:%d" % (port or self.port)}


class SharedFirestore(Firestore):
    """One emulator for all cells of a run: a fresh one is slow for its first minute. The port of
    one that runs already may be given in the environment."""

    def __init__(self, folder):
        super().__init__(folder)
        self.log = os.devnull  # in the folder of its first cell
        self.given = os.environ.get(EMULATOR_PORT)
        if self.given:
            self.port = int(self.given)

    def start(self):
        if self.process is None and not self.given:
            super().start()
            atexit.register(super().stop)

    def stop(self):
        if self.process is not None:
            self.resume()


class FakeFirestore(Server):
    """The fake server: chooses its port, unless --port names it, and prints it. It forgets its documents when it ends."""

    name = "firestore-fake"

    def __init__(self, folder, *arguments):
        super().__init__(folder)
        self.arguments = arguments
        self.log = os.path.join(folder, "log")

    def start(self):
        with open(self.log, "w", encoding="utf-8"):
            pass  # removes the port of an earlier start
        self.process = spawn([sys.executable, FAKE, *self.arguments], self.log)
        self.await_answer()

    def answers(self):
        with open(self.log, encoding="utf-8") as log:
            line = log.readline()
        if not line.endswith("\n"):
            return False
        self.port = int(line)
        return True

    def url(self, port=None):
        return "firestore://contract"

    def environment(self, port=None):
        return {"FIRESTORE_EMULATOR_HOST": "127.0.0.1:%d" % (port or self.port)}
