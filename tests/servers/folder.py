"""The store of examples/dir_backend has no server: a new folder in the given one."""

import os

from .process import Server


class Folder(Server):
    name = "dir"

    def start(self):
        pass

    def url(self, port=None):
        return "dir:" + os.path.join(self.folder, "locks")

    def stop(self):
        pass
