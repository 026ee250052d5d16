#!/usr/bin/env python3
"""Proves that the checker bites: breaks the backends one way at a time.

    mutants.py [--stores a,b] [--only NAME] [--seconds N]

Each mutant is one textual change to a copy of the tree. The copy is rebuilt,
clients run on it without any fault, and the checker must find the history
broken. A change whose text is not found fails: the list must follow the code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SQLITE = "src/backends/sqlite/"
REDIS = "src/backends/redis/scripts/"
POSTGRES = "src/backends/postgres/"
FIRESTORE = "src/backends/firestore/"

# store, what is broken, file, old text, new text, further arguments for run.py
MUTANTS = [
    ("sqlite", "liveness with the wrong sign", "src/core/liveness.c",
     "> now_ms - tolerance_ms", "> now_ms + tolerance_ms", []),
    ("sqlite", "release without owner check", SQLITE + "connection.c",
     "lock_id = ?1\",\n    [SG_COUNTER]", "length(?1) > 0\",\n    [SG_COUNTER]", ["--keys", "1"]),
    ("sqlite", "counter not atomic", SQLITE + "locks.c",
     "status = write_counter(sqlite, work, op->fence, err);",
     "status = op->fence % 50 != 0 ? write_counter(sqlite, work, op->fence, err) : status;", []),
    ("sqlite", "expiry ignored by extend", SQLITE + "renew.c",
     "if (!row.live || strcmp", "if (!row.found || strcmp", ["--forget", "20"]),
    ("sqlite", "another tolerance in one place", SQLITE + "locks.c",
     "if (row.live && strcmp(row.lock_id, op->lock_id) != 0) {",
     "if (row.remaining_ms > 500 && strcmp(row.lock_id, op->lock_id) != 0) {",
     ["--forget", "20"]),
    ("sqlite", "cleanup that removes counters", SQLITE + "connection.c",
     '[SG_DROP_LOCK] = "DELETE FROM syncguard_locks WHERE key = ?1 AND lock_id = ?2"',
     '[SG_DROP_LOCK] = "DELETE FROM syncguard_fence_counters WHERE ?2 <> \'\' AND'
     ' fence_key = \'fence:\' || ?1"',
     ["--forget", "4", "--keys", "60", "--query", "?cleanup=1"]),

    ("redis", "liveness with the wrong sign", REDIS + "acquire.lua",
     "local left = expires + ARGV[3] - now", "local left = expires - ARGV[3] - now", []),
    ("redis", "release without owner check", REDIS + "release.lua",
     "if id ~= ARGV[1] then", "if id == '' then", ["--forget", "20", "--keys", "2"]),
    ("redis", "counter not atomic", REDIS + "acquire.lua",
     "local fence = call('INCR', KEYS[3])",
     "local fence = (counter or 0) + 1\nif fence % 50 ~= 0 then call('SET', KEYS[3], fence) end",
     []),
    ("redis", "expiry ignored by extend", REDIS + "extend.lua",
     "if expires + ARGV[3] <= now then", "if expires < 0 then", ["--forget", "20"]),
    ("redis", "another tolerance in one script", REDIS + "acquire.lua",
     "local left = expires + ARGV[3] - now", "local left = expires + 500 - now",
     ["--forget", "20"]),

    ("postgres", "liveness with the wrong sign", POSTGRES + "sql.c",
     "coalesce(l.expires_at_ms > t.now - $4::bigint, false) AS live",
     "coalesce(l.expires_at_ms > t.now + $4::bigint, false) AS live", []),
    ("postgres", "counter not atomic", POSTGRES + "sql.c",
     "SET fence = f.fence + 1 WHERE", "SET fence = f.fence / 50 * 50 + 1 WHERE", []),
    ("postgres", "expiry ignored by extend", POSTGRES + "sql.c",
     "WHERE l.lock_id = $1 AND l.expires_at_ms > t.now - $2::bigint RETURNING l.expires_at_ms",
     "WHERE l.lock_id = $1 AND l.expires_at_ms > $2::bigint RETURNING l.expires_at_ms",
     ["--forget", "20"]),
    ("postgres", "another tolerance in one statement", POSTGRES + "sql.c",
     "coalesce(l.expires_at_ms > t.now - $4::bigint, false) AS live",
     "coalesce(l.expires_at_ms > t.now - $4::bigint / 2, false) AS live", ["--forget", "20"]),
]


def copy_tree(folder):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True,
                            text=True).stdout.split("\n")
    for name in listed:
        if name and os.path.exists(os.path.join(ROOT, name)):
            target = os.path.join(folder, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), target)


def build(folder):
    subprocess.run(["cmake", "--build", folder + "/build", "--parallel", "2"], check=True,
                   stdout=subprocess.DEVNULL)


def try_mutant(folder, mutant, seconds):
    store, what, name, old, new, more = mutant
    path = os.path.join(folder, name)
    with open(path) as f:
        original = f.read()
    if original.count(old) < 1:
        print("%-10s %-36s NOT FOUND in %s" % (store, what, name), flush=True)
        return False
    try:
        with open(path, "w") as f:
            f.write(original.replace(old, new, 1))
        build(folder)
        ran = subprocess.run([sys.executable, os.path.join(folder, "tests/fault/run.py"), "--build",
                              folder + "/build", "--stores", store, "--faults", "no-fault",
                              "--seconds", str(seconds)] + more, check=False, capture_output=True,
                             text=True)
    finally:
        with open(path, "w") as f:
            f.write(original)
    caught = ran.returncode == 1 and "promises broken" in ran.stdout
    print("%-10s %-36s %s" % (store, what, "caught" if caught else "NOT CAUGHT"), flush=True)
    if not caught:
        print(ran.stdout + ran.stderr, flush=True)
    return caught


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stores", default="sqlite,redis,postgres,firestore")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="syncguard-mutants-")
    try:
        copy_tree(folder)
        subprocess.run(["cmake", "-S", folder, "-B", folder + "/build", "-G", "Ninja"], check=True,
                       stdout=subprocess.DEVNULL)
        wanted = [m for m in MUTANTS
                  if m[0] in options.stores.split(",") and options.only in m[1]]
        caught = [try_mutant(folder, m, options.seconds) for m in wanted]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("%d mutants, %d caught" % (len(caught), sum(caught)))
    return 0 if caught and all(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
