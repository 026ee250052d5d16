"""SQLite has no server: a file in the folder."""

import os
import sqlite3

from .process import Server


class Sqlite(Server):
    name = "sqlite"

    def start(self):
        pass

    def url(self, port=None):
        return "sqlite:" + os.path.join(self.folder, "locks.db")

    def pause(self):
        """Holds the file's write lock, as a stopped writer would."""
        self.writer = sqlite3.connect(self.url()[len("sqlite:"):], isolation_level=None)
        self.writer.execute("BEGIN IMMEDIATE")

    def resume(self):
        self.writer.close()

    def stop(self):
        pass
