#!/usr/bin/env python3
"""Shows that the checker finds faults: breaks the backends in one way at a time.

    mutants.py [--stores a,b] [--only NAME,...] [--seconds N] [--times N] [--controls]

Each mutant is a textual change to a copy of the tree. The copy is rebuilt,
clients run on it (without any fault, unless the mutant is about one), and the checker must
find the history broken. Where a test of the suite makes the fault happen at the right moment, which
clients only meet by chance, that test must fail instead. A change whose text is not found fails: the
list must follow the code. With --controls the same runs are made without any change, and must find
nothing.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SQLITE = "src/backends/sqlite/"
REDIS = "src/backends/redis/scripts/"
POSTGRES = "src/backends/postgres/"
FIRESTORE = "src/backends/firestore/"

# Further arguments for run.py: locks that are left to expire are common, keys are few or many.
EXPIRING = ["--forget", "20", "--single", "4", "--seconds", "8"]
LEASES = ["--forget", "20", "--seconds", "6"]
ONE_KEY = ["--keys", "1"]
MANY_KEYS = ["--keys", "200"]  # so that a dead lock is not taken over at once
TIDIED = ["--forget", "4", "--keys", "200", "--clients", "4", "--threads", "6", "--lock-threads", "12",
          "--query", "?cleanup=1", "--seconds", "8"]
MOVING = ["--faults", "moving-slot", "--seconds", "8"]
# Every stop is longer than the leases of the keepers, and there are many of them.
LOSING = ["--faults", "stopped-server", "--stop", "0.9", "--clients", "6", "--single", "1", "--seconds", "10"]

LONGEST = ["redis", "firestore", "postgres", "sqlite"]

# The emulator gets fewer clients, for a longer time.
SLOW = {"firestore": ["--clients", "3", "--threads", "2", "--lock-threads", "4", "--keys", "3", "--seconds", "8"]}

SIGN = "liveness with the wrong sign"
OWNER = "release without owner check"
COUNTER = "counter not atomic"
CLEANUP = "cleanup that removes counters"
EXTEND = "expiry ignored by extend"
TOLERANCE = "another tolerance in one place"
GUARD = "a wrong clock that is not noticed"
FOUND = "a re-send that does not write"
WARNING = "a broken-off wait for the standby counts as success"
WAKE = "a release that wakes no waiter"
LEASE = "a lease that is counted too long"
TWICE = "on_lost called twice"
SILENT = "on_lost not called"
LATE = "on_lost called late"
KEPT = "a command that does not release"
CHILD = "a child that is never ended"
GUARDED = "a watchdog that comes after the child"
HALF = "a script that sees half of the names"
EARLY = "a fence from before the lock was taken"
REST = "an extend that ends a lock earlier without a notification"

# What the checker must print for the mutants that only one check finds.
REASONS = {WAKE: "a key stayed free while a client waited for it", TWICE: "on_lost was called twice",
           SILENT: "a lock was lost and on_lost was not called",
           LATE: "on_lost came after the lease had ended in the store",
           KEPT: "a command ended and did not release its lock",
           CHILD: "a child of the command outlived its lock",
           GUARDED: "a command that is killed leaves no program", FOUND: "two holders of '0 terminate'",
           REST: "FAILED  ] earlier_end_reaches_waiters", WARNING: "two holders of '0 cancel'"}

# Faults that a cell has only a few times (a lease that ends, a hash slot that moves): a run of these mutants repeats
# the cell until the fault is found, at most so many times.
CELLS = {TWICE: 3, SILENT: 3, LATE: 3, HALF: 4, EARLY: 3}

# Tests of the suite, and the targets that must be built for them. A commit that the standby has not confirmed, and
# then a failover to it; a command that is killed as soon as its child runs; a lease that is shortened while a waiter
# rests.
STANDBY = "postgres_standby"
WATCHDOG = "cli_watchdog"
SQLITE_SUITE = "contract_sqlite"
POSTGRES_SUITE = "contract_postgres_plain"
TARGETS = {STANDBY: ["postgres_standby"], WATCHDOG: ["syncguard-cli", "syncguard-sqlite"],
           SQLITE_SUITE: ["contract", "syncguard-sqlite"], POSTGRES_SUITE: ["contract", "syncguard-cli", "syncguard-postgres"]}

# store, what is broken, changes (file, old text, new text), further arguments for run.py or the test's name
MUTANTS = [
    ("sqlite", SIGN, [("src/core/liveness.c", "> now_ms - tolerance_ms",
                       "> now_ms + tolerance_ms")], []),
    ("sqlite", OWNER, [
        (SQLITE + "connection.c", "[SG_SQLITE_READ_ID] = RECORD_COLUMNS \" WHERE lock_id = ?1\"",
         "[SG_SQLITE_READ_ID] = RECORD_COLUMNS \" WHERE length(?1) > 0\""),
        (SQLITE + "mutate.c", "sg_sqlite_record_owned(&record, op->lock_id, &op->reason)",
         "sg_sqlite_record_owned(&record, record.stored.lock_id, &op->reason)")], ONE_KEY),
    ("sqlite", COUNTER, [(SQLITE + "mutate.c",
                          "status = sqlite_counter_write(sqlite, context, err);",
                          "status = op->fence % 20 == 0 ? status : "
                          "sqlite_counter_write(sqlite, context, err);")], []),
    ("sqlite", CLEANUP, [
        (SQLITE + "connection.c",
         '[SG_SQLITE_DELETE_LOCK] = "DELETE FROM syncguard_locks WHERE lock_id = ?1"',
         '[SG_SQLITE_DELETE_LOCK] = "DELETE FROM syncguard_fence_counters WHERE fence_key IN'
         ' (SELECT \'fence:\' || key FROM syncguard_locks WHERE lock_id = ?1)"')], TIDIED),
    ("sqlite", EXTEND, [(SQLITE + "mutate.c", "op->first_sent_ns = record.read_ns;\n",
                         "op->first_sent_ns = record.read_ns;\n    record.live = record.found;\n")], EXPIRING + MANY_KEYS),
    ("sqlite", TOLERANCE, [
        (SQLITE + "mutate.c", "if (!record.live)\n        return sqlite_lock_grant(",
         "if (!record.found || record.remaining_ms <= 500)\n        return sqlite_lock_grant(")], EXPIRING),

    ("sqlite", REST, [(SQLITE + "mutate.c", "if (status == SYNCGUARD_OK && cell != SG_SQLITE_NO_CELL)",
                       "if (status != SYNCGUARD_OK && cell != SG_SQLITE_NO_CELL)")], SQLITE_SUITE),
    ("sqlite", GUARDED, [
        ("src/cli/supervise.c", "    (void)supervisor_keep_watchdog(s);\n", ""),
        ("src/cli/supervise.c", "    cli_watchdog_start(&s->watchdog, ",
         "    poll(NULL, 0, 20);\n    cli_watchdog_start(&s->watchdog, ")], WATCHDOG),

    ("redis", SIGN, [(REDIS + "acquire.lua", "local left = expires + ARGV[2] - ARGV[1] - now",
                      "local left = expires - ARGV[2] + ARGV[1] - now")], []),
    # Without the index the script would not find the name at all: it gets the name of the only key.
    ("redis", OWNER, [
        (REDIS + "release.lua", "or call('GET', KEYS[1])",
         "or call('GET', KEYS[1]) or 'syncguard:fault-0'"),
        (REDIS + "release.lua", "if id ~= (ARGV[3] or string.sub(KEYS[1], -22)) then",
         "if id == '' then")], ONE_KEY),
    ("redis", COUNTER, [
        (REDIS + "acquire.lua", "local fence = call('INCR', KEYS[3])",
         "local fence = (counter or 0) + 1\n"
         "if fence % 20 ~= 0 then call('SET', KEYS[3], fence) end")], []),
    # Locks expire in Redis before they are due for cleanup: the mutant makes them stay.
    ("redis", CLEANUP, [
        (REDIS + "acquire.lua", "call('SET', KEYS[1], value, 'PX', ARGV[2])",
         "call('SET', KEYS[1], value, 'PX', ARGV[2] + 60000)"),
        (REDIS + "cleanup.lua", "redis.pcall('DEL', KEYS[1])",
         "redis.pcall('DEL', KEYS[1], 'syncguard:fence:' .. KEYS[1])")], TIDIED),
    ("redis", EXTEND, [
        (REDIS + "acquire.lua", "call('SET', KEYS[1], value, 'PX', ARGV[2])",
         "call('SET', KEYS[1], value, 'PX', ARGV[2] + 60000)"),
        (REDIS + "acquire.lua", "'NX', 'PX', ARGV[2])", "'NX', 'PX', ARGV[2] + 60000)"),
        (REDIS + "extend.lua", "if expires + ARGV[2] - ARGV[1] <= now then",
         "if expires == '' then")],
     EXPIRING + MANY_KEYS),
    ("redis", TOLERANCE, [(REDIS + "acquire.lua",
                           "local left = expires + ARGV[2] - ARGV[1] - now",
                           "local left = expires + 500 - now")], EXPIRING),

    ("redis-cluster", HALF, [("src/backends/redis/request.c", "    if (!request->one_name) {",
                              "    if (!request->one_name && redis_script_key_count(request->script) > 1) {")], MOVING),
    # Every second request is slow, so that others overtake it.
    ("redis-cluster", EARLY, [
        ("src/backends/redis/cluster.c", "#include <string.h>\n", "#include <string.h>\n#include <time.h>\n"),
        ("src/backends/redis/cluster.c",
         "    syncguard_status status =\n"
         "        cluster_lock_hold(request, lock, op, cluster_take_ms(op), NO_FENCE, 0, err);",
         "    char fence[SYNCGUARD_FENCE_SIZE];\n"
         "    sg_redis_request first;\n"
         "    sg_redis_request_init(&first, request->backend, request->limits, SG_REDIS_SCRIPTS);\n"
         "    if (cluster_fence_next(&first, &request->names.counter, fence, err) == SYNCGUARD_OK && fence[14] % 2 == 1)\n"
         "        nanosleep(&(struct timespec){0, 20000000}, NULL);\n"
         "    syncguard_status status =\n"
         "        cluster_lock_hold(request, lock, op, cluster_take_ms(op), NO_FENCE, 0, err);"),
        ("src/backends/redis/cluster.c",
         "    char fence[SYNCGUARD_FENCE_SIZE];\n    if (status == SYNCGUARD_OK)\n"
         "        status = cluster_fence_next(request, &request->names.counter, fence, err);",
         "    if (status == SYNCGUARD_OK)\n        syncguard_error_clear(err);")], MOVING),

    # The helper and the command: the same code on every store.
    ("redis", WAKE, [("src/core/wait_queue.c", "if (waiters->trying == 0)\n        key_waiters_wake_one(waiters);",
                      "if (false)\n        key_waiters_wake_one(waiters);")],
     MANY_KEYS + ["--seconds", "8"]),
    ("redis", LEASE, [("src/core/lock_acquire.c",
                       "syncguard_clock_after(c->op->first_sent_ns, c->op->ttl_ms));",
                       "syncguard_clock_after(c->op->first_sent_ns, c->op->ttl_ms + 3000));")], LEASES),
    ("redis", TWICE, [("src/core/lost_locks.c", "on_lost(context, lock, sg_lock_check_lease(lock));",
                       "on_lost(context, lock, sg_lock_check_lease(lock));\n"
                       "on_lost(context, lock, sg_lock_check_lease(lock));")], LOSING),
    ("redis", SILENT, [("src/core/lost_locks.c", "on_lost(context, lock, sg_lock_check_lease(lock));",
                        "(void)on_lost, (void)context;")], LOSING),
    ("redis", LATE, [("src/core/lost_locks.c", "on_lost(context, lock, sg_lock_check_lease(lock));",
                      "nanosleep(&(struct timespec){2, 0}, NULL);\n"
                      "if (!atomic_load(&lock->released))\n"
                      "on_lost(context, lock, sg_lock_check_lease(lock));")], LOSING),
    ("redis", KEPT, [("src/cli/cmd_run.c", "    code = run_release_locks(options, set, code, &figures->lost);\n",
                      "    if (code == 0) {\n        syncguard_lock_set_detach(set);\n        return code;\n    }\n"
                      "    code = run_release_locks(options, set, code, &figures->lost);\n")], ["--seconds", "8"]),
    ("redis", CHILD, [("src/cli/watchdog.c", "\n    kill(-group, SIGTERM);", ""),
                      ("src/cli/watchdog.c", "\n    kill(-group, SIGKILL);", ""),
                      ("src/cli/watchdog.c", "\n            kill(-(pid_t)last.group, SIGKILL);", "")],
     ["--seconds", "8"]),

    ("postgres", SIGN, [
        (POSTGRES + "sql.c", "> (@N - \"\n    \"$4::bigint)", "> (@N + \"\n    \"$4::bigint)"),
        (POSTGRES + "sql.c", "l.expires_at_ms <= excluded.acquired_at_ms - $4::bigint",
         "l.expires_at_ms <= excluded.acquired_at_ms + $4::bigint")], []),
    ("postgres", OWNER, [
        (POSTGRES + "sql.c", "DELETE FROM @L WHERE lock_id = $1 AND @A",
         "DELETE FROM @L WHERE (lock_id = $1 OR $1 <> '') AND @A")], ONE_KEY),
    ("postgres", COUNTER, [(POSTGRES + "sql.c", "DO UPDATE SET fence = f.fence + 1 ",
                            "DO UPDATE SET fence = f.fence / 20 * 20 + 1 ")], []),
    ("postgres", CLEANUP, [
        (POSTGRES + "sql.c", "DELETE FROM @L WHERE key = $1 AND lock_id = $2 AND \"\n"
         "                      \"expires_at_ms = $3::bigint AND expires_at_ms < @N - $4::bigint",
         "DELETE FROM @F WHERE fence_key = 'fence:' || $1 AND $2 <> '' AND \"\n"
         "                      \"$3::bigint > 0 AND $4::bigint > 0")], TIDIED),
    ("postgres", EXTEND, [
        (POSTGRES + "sql.c",
         "WHERE l.lock_id = $1 AND l.expires_at_ms * 1024 > (t.now - $2::bigint) * 1024 ",
         "WHERE l.lock_id = $1 AND l.expires_at_ms > $2::bigint AND t.now > 0 ")],
     EXPIRING + MANY_KEYS),
    ("postgres", TOLERANCE, [
        (POSTGRES + "sql.c", "> (@N - \"\n    \"$4::bigint)", "> (@N - \"\n    \"$4::bigint / 2)"),
        (POSTGRES + "sql.c", "l.expires_at_ms <= excluded.acquired_at_ms - $4::bigint",
         "l.expires_at_ms <= excluded.acquired_at_ms - $4::bigint / 2")], EXPIRING),

    ("postgres", REST, [(POSTGRES + "sql.c", "l.expires_at_ms < was AND ", "l.expires_at_ms IS NULL AND ")],
     POSTGRES_SUITE),
    ("postgres", FOUND, [
        (POSTGRES + "mutate.c", "if (status == SYNCGUARD_OK && found)",
         "if (status == SYNCGUARD_OK && found && values.ttl[0] == 'x')")], STANDBY),
    ("postgres", WARNING, [
        (POSTGRES + "connection.c", "strcmp(severity, \"WARNING\") == 0)",
         "strcmp(severity, \"\") == 0)")], STANDBY),

    ("firestore", SIGN, [
        (FIRESTORE + "mutate.c", "if (syncguard_is_live(lock.record.expires_at_ms, at.wall_ms))",
         "if (syncguard_is_live(lock.record.expires_at_ms, at.wall_ms + 2000))")], []),
    ("firestore", OWNER, [
        (FIRESTORE + "record.c", '"op", "EQUAL", "value", "stringValue", lock_id',
         '"op", "GREATER_THAN", "value", "stringValue", lock_id[0] != 0 ? "" : lock_id'),
        (FIRESTORE + "query.c",
         "if (strcmp(lock.record.lock_id, lock_id) != 0)\n            continue;",
         "if (lock_id == NULL)\n            continue;")], ONE_KEY),
    ("firestore", COUNTER, [
        (FIRESTORE + "mutate.c",
         "sg_firestore_write_fence(a->fence_name, counter.update_time,\n"
         "                                                               record.fence, op->key));",
         "sg_firestore_write_fence(a->fence_name, counter.update_time,\n"
         "next % 4 == 0 ? \"000000000000001\" : record.fence, op->key));")], []),
    ("firestore", CLEANUP, [
        (FIRESTORE + "mutate.c",
         "sg_firestore_commit(ctx, sg_firestore_add(json_array(), write)",
         "sg_firestore_commit(ctx, sg_firestore_add(sg_firestore_add(json_array(),\n"
         "json_pack(\"{s:s++}\", \"delete\", ctx->backend->names.documents,\n"
         "\"/fence_counters/fence:\", strrchr(lock->name, '/') + 1)), write)")], TIDIED),
    ("firestore", EXTEND, [
        (FIRESTORE + "mutate.c", "if (!syncguard_is_live(cached.expires_at_ms, at.wall_ms)) {",
         "if (cached.expires_at_ms == at.wall_ms + 1) {"),
        (FIRESTORE + "cache.c", "if (syncguard_is_live((*at)->expires_at_ms, now_ms))",
         "if ((*at)->expires_at_ms > now_ms - 600000)")], EXPIRING + MANY_KEYS),
    ("firestore", TOLERANCE, [
        (FIRESTORE + "mutate.c", "if (syncguard_is_live(lock.record.expires_at_ms, at.wall_ms))",
         "if (syncguard_is_live(lock.record.expires_at_ms, at.wall_ms + 500))")], EXPIRING),
    ("firestore", GUARD, [
        (FIRESTORE + "clock.c", "if (limit_ms > 0 && certain_us >= limit_ms * 1000)",
         "if (limit_ms < 0 && certain_us >= limit_ms * 1000)")],
     ["--faults", "clock-plus-5s"]),
]


def copy_tree(folder):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True,
                            text=True).stdout.split("\n")
    for name in listed:
        if name and os.path.exists(os.path.join(ROOT, name)):
            target = os.path.join(folder, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), target)


def family(store):
    """The store whose code it shares: redis for redis-cluster."""
    return store.split("-")[0]


def build(folder, mutant):
    store, _, _, more = mutant
    targets = TARGETS[more] if isinstance(more, str) else [
        "fault_client", "fault_run", "fault_check", "syncguard-cli", "syncguard-" + family(store)]
    subprocess.run(["cmake", "--build", folder + "/build", "--parallel", "2", "--target"] + targets,
                   check=True, stdout=subprocess.DEVNULL)


def change(folder, changes):
    """Applies the changes; returns the former contents of the files, or None if a text is not there."""
    before = {}
    for name, old, new in changes:
        path = os.path.join(folder, name)
        with open(path) as f:
            text = f.read()
        before.setdefault(path, text)
        if old not in text:
            restore(before)
            return None
        with open(path, "w") as f:
            f.write(text.replace(old, new, 1))
    return before


def restore(before):
    for path, text in before.items():
        with open(path, "w") as f:
            f.write(text)


def run_test(folder, name):
    """1 if the test fails, and its output."""
    ran = subprocess.run(["ctest", "--test-dir", folder + "/build", "-R", "^%s$" % name, "--no-tests=error",
                          "--output-on-failure"], check=False, capture_output=True, text=True)
    return int(ran.returncode != 0), ran.stdout + ran.stderr


def run_cell(folder, mutant, options):
    """1 if a promise is broken, and the output."""
    store, _, _, more = mutant
    ran = subprocess.run([sys.executable, os.path.join(folder, "tests/fault/run.py"), "--build",
                          folder + "/build", "--stores", store, "--faults", "no-fault",
                          "--wake-ups", "0", "--threads", "4", "--seconds", str(options.seconds)] +
                         SLOW.get(store, []) + more, check=False, capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def is_caught(folder, mutant, options):
    _, what, changes, more = mutant
    if isinstance(more, str):
        code, said = run_test(folder, more)
    else:
        code, said = run_cell(folder, mutant, options)
    if not changes:
        return code == 0, said
    broken = isinstance(more, str) or "promises broken" in said
    return code == 1 and broken and REASONS.get(what, "") in said, said


def try_mutant(folder, mutant, options):
    store, what, changes, _ = mutant
    before = change(folder, changes)
    if before is None:
        print("%-10s %-36s NOT FOUND in the source" % (store, what), flush=True)
        return False
    begun = time.monotonic()
    try:
        build(folder, mutant)
        for _ in range(CELLS.get(what, 1)):
            caught, said = is_caught(folder, mutant, options)
            if caught:
                break
    finally:
        restore(before)
    why = re.search(r"BROKEN key \d+: (.*)|(two holders of .*)", said)
    verdict = ("caught" if caught else "NOT CAUGHT") if changes else ("kept" if caught else "BROKEN")
    print("%-10s %-36s %s  %3d s%s" % (store, what, verdict, time.monotonic() - begun,
                                       "  " + (why.group(1) or why.group(2)) if caught and why else ""), flush=True)
    if not caught:
        print(said, flush=True)
    return caught


def controls(mutants):
    """One for each way in which they are run."""
    found = {}
    for store, _, _, more in mutants:
        words = more if isinstance(more, str) else " ".join(more)
        found.setdefault((store, words), (store, "control " + words, [], more))
    return list(found.values())


def try_family(name, mutants, options):
    wanted = controls(mutants) if options.controls else mutants
    folder = tempfile.mkdtemp(prefix="syncguard-mutants-")
    emulator = None
    try:
        copy_tree(folder)
        subprocess.run(["cmake", "-S", folder, "-B", folder + "/build", "-G", "Ninja"], check=True,
                       stdout=subprocess.DEVNULL)
        if name == "firestore":
            emulator = servers.Firestore(folder)
            emulator.start()
            os.environ[servers.EMULATOR_PORT] = str(emulator.port)
        return [try_mutant(folder, m, options) for m in wanted for _ in range(options.times)]
    finally:
        if emulator is not None:
            emulator.stop()
        shutil.rmtree(folder, ignore_errors=True)


def check_texts():
    stale = 0
    for store, what, changes, _ in MUTANTS:
        for name, old, _ in changes:
            with open(os.path.join(ROOT, name)) as f:
                if old not in f.read():
                    print("%s, %s: not found in %s" % (store, what, name))
                    stale += 1
    print("%d mutants, %d texts not found" % (len(MUTANTS), stale))
    return 1 if stale else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stores", default="redis,redis-cluster,postgres,firestore,sqlite")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--controls", action="store_true",
                        help="change nothing, and expect that nothing is found")
    parser.add_argument("--check", action="store_true",
                        help="only check that the texts to change are in the source")
    options = parser.parse_args()
    if options.check:
        return check_texts()
    families = {}
    for mutant in MUTANTS:
        if mutant[0] in options.stores.split(",") and any(word in mutant[1] for word in options.only.split(",")):
            families.setdefault(family(mutant[0]), []).append(mutant)
    # Two at a time, the slowest first: while one builds, the other mostly waits.
    order = sorted(families.items(), key=lambda f: LONGEST.index(f[0]))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda f: try_family(*f, options), order))
    caught = [c for result in results for c in result]
    print("%d %s" % (len(caught), "controls, %d kept" % sum(caught) if options.controls
                     else "mutants, %d caught" % sum(caught)))
    return 0 if caught and all(caught) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers
    sys.exit(main())
