#!/usr/bin/env python3
"""Starts one of the stores of the fault suite, runs a command with its URL, stops it.

    with-store.py --build DIR STORE COMMAND [ARGUMENT...]      the URL is appended
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("store")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    options.seed = 1
    folder = run.stores.make_folder("syncguard-store-")
    place = os.path.join(folder, "store")
    os.mkdir(place)
    store = run.make_store(options.store, place)
    store.start()
    try:
        run.prepare(run.Cell(options, store, folder), None)
        environment = dict(os.environ)
        if hasattr(store, "environment"):
            environment.update(store.environment())
        return subprocess.run(options.command + [store.url()], env=environment,
                              check=False).returncode
    finally:
        store.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are stopped on the way out
    sys.exit(main())
