#!/usr/bin/env python3
"""The wheel has what it needs, the version of the library, and works as it is.

    python_wheel.py SOURCE VERSION
"""
import os
import subprocess
import sys
import tempfile
import zipfile

PROGRAM = """
import syncguard
assert ".whl" in syncguard.__file__, syncguard.__file__
with syncguard.open("memory:") as store, store.acquire("key") as lock:
    print(syncguard.__version__, lock.fence)
"""


def main():
    source, version = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(source, "scripts/build-wheel.sh"), folder], check=True)
        wheel = os.path.join(folder, "syncguard-%s-py3-none-any.whl" % version)
        names = set(zipfile.ZipFile(wheel).namelist())
        package = os.path.join(source, "bindings/python/src/syncguard")
        expected = {"syncguard/" + name for name in os.listdir(package) if name != "__pycache__"}
        if not expected <= names or "syncguard/py.typed" not in names:
            print("the wheel lacks", expected - names)
            return 1
        out = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True,
                             env=dict(os.environ, PYTHONPATH=wheel)).stdout
        print(out)
        return 0 if out == "%s 000000000000001\n" % version else 1


if __name__ == "__main__":
    sys.exit(main())
