"""Runs a program beside a server: see README.md.

    python3 tests/servers --build DIR STORE -- PROGRAM [ARGUMENT...]
    python3 tests/servers --serve                   for client.c
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402
import servers.serve  # noqa: E402


def run(server, build, command):
    server.setup(build)
    url = server.url()
    environment = dict(os.environ, SYNCGUARD_TEST_URL=url, **server.environment())
    code = subprocess.run([url if word == "@URL" else word for word in command], env=environment,
                          check=False, preexec_fn=servers.end_with_parent()).returncode
    return code if code >= 0 else 128 - code


def main():
    if sys.argv[1:] == ["--serve"]:
        return servers.serve.main()
    parser = argparse.ArgumentParser(prog="servers", description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("store", choices=servers.STORES)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no program")
    if options.store == "firestore" and servers.Firestore.program() is None:
        print("SKIP firestore-emulator: install %s and a Java runtime to run %s" %
              (servers.PACKAGE, os.path.basename(command[0])))
        return 77
    folder = servers.make_folder("syncguard-%s-" % options.store)
    try:
        with servers.make(options.store, folder) as server:
            return run(server, os.path.abspath(options.build), command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers
    sys.exit(main())
