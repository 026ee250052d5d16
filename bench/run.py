#!/usr/bin/env python3
"""Measures everything and writes bench/RESULTS.md and bench/results.svg.

    run.py BUILD [--into FOLDER] [--repeat N] [--held SECONDS] [--without STEP,...] [--stores A,B]
                 [--update] [--note TEXT]

Starts its own servers on free loopback ports, with their data below /var/tmp, and stops them by
their process. Steps that can be left out: stores, command, peers, held. The figures are also kept
in results.jsonl; --update replaces only those that were measured again. BENCH_NICE=-15 or
BENCH_REALTIME=1 lets a busy machine measure (needs the right to); the results say so.
"""
import argparse
import contextlib
import datetime
import importlib.util
import io
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tests")]
import peers  # noqa: E402
import servers  # noqa: E402


def start_bench(build, folder, stores, arguments, environment=None):
    """Starts syncguard-bench; stores: those to measure, None for memory."""
    env = dict(os.environ, **(environment or {}))
    command = [os.path.join(build, "syncguard-bench"), "--json", "--own"]
    for server in stores:
        command += ["-b", server.url() if server else "memory:"]
        if server is not None:
            env.update(server.environment())
    return subprocess.Popen(command + arguments, stdout=subprocess.PIPE, text=True, env=env,
                            cwd=folder)


def collect(process, figures):
    for line in process.stdout:
        figure = json.loads(line)
        figures.append(figure)
        show(figure)
    process.wait()
    if process.returncode not in (0, 1):
        sys.exit("run.py: syncguard-bench failed (%d)" % process.returncode)


def show(figure):
    print("%-9s %-42s %10.5g %-5s %s" % (figure["store"], figure["figure"], figure["measured"],
                                       figure["unit"], verdict(figure)), flush=True)


def verdict(figure):
    if "bar" not in figure:
        return ""
    return "pass" if figure["holds"] else "MISS"


def figure_of(store, name, unit, measured, limit, against, bar=None, least=False):
    """A figure from one value per repetition of each side; bar: of the ratio."""
    ratios = sorted(m / l for m, l in zip(measured, limit))
    ratio = statistics.median(ratios)
    figure = {"store": store, "figure": name, "unit": unit,
              "measured": statistics.median(measured), "limit": statistics.median(limit),
              "against": against, "ratio": ratio, "spread": [ratios[0], ratios[-1]],
              "repetitions": len(measured)}
    if bar is not None:
        figure["bar"] = "ratio %s %g" % (">=" if least else "<=", bar)
        figure["holds"] = ratio >= bar if least else ratio <= bar
    return figure


def command_figures(build, folder, redis, repetitions):
    """`syncguard run` of true against flock(1): medians of 200 runs in all, in turns."""
    syncguard = os.path.join(build, "syncguard")
    runs = max(20, 200 // repetitions)
    flock = "flock %s true" % os.path.join(folder, "flock")
    ours = ["%s run -b sqlite:%s k -- true" % (syncguard, os.path.join(folder, "run.db"))]
    if redis is not None:
        ours.append("%s run -b %s k -- true" % (syncguard, redis.url()))
    medians = [[] for _ in range(len(ours) + 1)]
    for _ in range(repetitions):
        out = os.path.join(folder, "hyperfine.json")
        subprocess.run(["hyperfine", "-N", "--style", "none", "--warmup", "5", "--runs", str(runs),
                        "--export-json", out, flock] + ours, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(out) as f:
            for times, result in zip(medians, json.load(f)["results"]):
                times.append(result["median"] * 1000)
    names = [("sqlite", "syncguard run true", 2.5), ("redis", "syncguard run true", 3.0)]
    return [figure_of(store, name, "ms", times, medians[0], "flock FILE true", bar)
            for (store, name, bar), times in zip(names, medians[1:])]


def hang_figures(build, names):
    """How late operations come back while the server hangs: the figures of tests/stores/hang.py."""
    client = os.path.join(build, "tests", "stores", "hang_client")
    spec = importlib.util.spec_from_file_location("hang", os.path.join(HERE, "..", "tests", "stores",
                                                                       "hang.py"))
    hang = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hang)
    found = []
    for name in names:
        if name in hang.STORES and os.path.exists(client):
            with contextlib.redirect_stdout(io.StringIO()):
                hang.measure(client, os.path.join(build, "syncguard"), name, found)
    result = []
    for what, calls, median, worst, most, never in found:
        store, _, how = what.partition(", ")
        for word, late, allowed in (("median", median, most), ("worst", worst, never)):
            # What a plain wait was late at the same time is allowed on top.
            result.append({"store": store, "figure": "server hangs%s: %s of %d calls, late" %
                           (", " + how if how else "", word, calls), "unit": "ms",
                           "measured": late, "spread": [late, late], "repetitions": 1,
                           "bar": "<= %.1f" % allowed, "holds": late <= allowed})
    return result


# ---- the page ----------------------------------------------------------------------------------

def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout or done.stderr).splitlines()[0].strip()
    except (OSError, IndexError):
        return "none"


def cpu_model():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def machine(build, load):
    versions = {
        "syncguard": first_line([os.path.join(build, "syncguard"), "version"]),
        "Redis": first_line(["redis-server", "--version"]).split(" sha")[0],
        "PostgreSQL": first_line([servers.postgres.program("postgres"), "--version"]),
        "SQLite": first_line(["pkg-config", "--modversion", "sqlite3"]),
        "hiredis": first_line(["pkg-config", "--modversion", "hiredis"]),
        "libpq": first_line(["pkg-config", "--modversion", "libpq"]),
        "libcurl": first_line(["pkg-config", "--modversion", "libcurl"]),
        "Node": first_line(["node", "--version"]),
        "compiler": first_line(["cc", "--version"]),
    }
    lines = ["- %s, %d cores, %s %s" % (cpu_model(), os.cpu_count(), platform.system(),
                                        platform.release()),
             "- " + ", ".join("%s: %s" % item for item in versions.items()),
             "- load average %s before and %s after the run%s" %
             (load, load_now(), priority_note())]
    return "\n".join(lines)


def priority_note():
    if os.environ.get("BENCH_REALTIME"):
        return "; other work was going on, and the run had real-time priority"
    nice = os.environ.get("BENCH_NICE")
    return "; other work was going on, and the run had nice %s" % nice if nice else ""


def load_now():
    with open("/proc/loadavg") as f:
        return f.read().split()[0]


def number(value):
    return "%.0f" % value if abs(value) >= 1000 else "%.3g" % value


def row(figure):
    limit = "%s (%s)" % (number(figure["limit"]), figure["against"]) if "limit" in figure else ""
    ratio = "%.3f" % figure["ratio"] if "ratio" in figure else ""
    spread = "%s to %s, %d runs" % (number(figure["spread"][0]), number(figure["spread"][1]),
                                    figure["repetitions"])
    if figure["repetitions"] == 1:
        spread = "one run"
    return "| %s | %s %s | %s | %s | %s | %s | %s |" % (
        figure["figure"], number(figure["measured"]), figure["unit"], limit, ratio,
        figure.get("bar", ""), spread, verdict(figure))


PLACEMENT = (
    "Lines that say \"pinned\" were measured with the server on one processor and all its clients, "
    "plain or ours, on another. Left to itself, as in the same lines without that word, the "
    "scheduler mostly puts a plain client and its server's process on one processor, where a plain "
    "pair on PostgreSQL takes 30 % less time, and the processes of a hand-over on both. PostgreSQL's "
    "bars are for both; its hand-over between two processes is near the bar where the scheduler "
    "decides. Its tables are vacuumed before each series.")


def write_page(path, build, figures, load, missing, again):
    judged = [f for f in figures if "bar" in f]
    passed = sum(f["holds"] for f in judged)
    lines = ["# Results", "",
             "Written by `make bench` on %s. Each line: the median of what we measured, the same "
             "work by the plain client of the store in turns with it (the limit), the median of "
             "their ratios, the bar, and the smallest and largest ratio (or value, where there is "
             "no limit)." % datetime.datetime.now(datetime.timezone.utc).strftime(
                 "%Y-%m-%d %H:%M UTC"), "",
             PLACEMENT, "",
             machine(build, load), "",
             "**%d of %d bars hold.**" % (passed, len(judged)), "", "![plot](results.svg)", ""]
    if again:
        lines += [again, ""]
    if missing:
        lines += ["Not measured in this run: %s." % ", ".join(missing), ""]
    for store in dict.fromkeys(f["store"] for f in figures):
        lines += ["## %s" % store, "",
                  "| figure | measured | limit | ratio | bar | spread | |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]
        lines += [row(f) for f in figures if f["store"] == store] + [""]
    with open(path, "w") as f:
        f.write("\n".join(lines))


# ---- the run -----------------------------------------------------------------------------------

def start_stores(names, folder):
    running = {"memory": None} if "memory" in names else {}
    for name in names:
        if name == "memory":
            continue
        place = os.path.join(folder, name)
        os.mkdir(place)
        server = servers.make("redis-volatile" if name == "redis" else name, place)
        if name == "firestore" and server.program() is None:
            print("run.py: no Firestore emulator, left out", file=sys.stderr)
            continue
        server.start()
        running[name] = server
    return running


def measure(options, running, folder, figures):
    build = options.build
    repeat = ["--repeat", str(options.repeat)]
    if "stores" not in options.without:
        groups = ["pair", "threads", "handover", "waiters", "renewals", "memory", "server",
                  "takeover", "growth"]
        collect(start_bench(build, folder, running.values(), repeat + groups), figures)
    if "command" not in options.without:
        for figure in command_figures(build, folder, running.get("redis"), options.repeat):
            figures.append(figure)
            show(figure)
    if "peers" not in options.without and "redis" in running:
        for figure in peers.figures(build, folder, running["redis"], options.repeat, figure_of):
            figures.append(figure)
            show(figure)
    if "held" not in options.without:
        # Side by side: each counts its own time.
        both = [start_bench(build, folder, [running[name]], ["held"],
                            {"BENCH_HELD_SECONDS": str(options.held)})
                for name in ("redis", "postgres") if name in running]
        for figure in hang_figures(build, running):  # they mostly wait, as the others do
            figures.append(figure)
            show(figure)
        for process in both:
            collect(process, figures)


def merge(path, figures):
    """Earlier figures with those of this run in their places, and what the page says of that."""
    def name(f):
        return f["store"], f["figure"], f.get("against") if f["store"] == "peers" else None

    fresh = {name(f): f for f in figures}
    with open(path) as f:
        earlier = [json.loads(line) for line in f]
    again = ["%d figures were measured again after the full run%s."
             % (len(figures), priority_note())]
    changed = ["%s %s: %s before (%s %s)" % (f["store"], f["figure"], verdict(f),
                                             number(f["measured"]), f["unit"])
               for f in earlier if name(f) in fresh and verdict(f) != verdict(fresh[name(f)])]
    if changed:
        again.append("Where that changed the verdict: %s." % "; ".join(changed))
    return [fresh.pop(name(f), f) for f in earlier] + list(fresh.values()), " ".join(again)


def prefer(nice):
    """Before others, also where the kernel weighs sessions instead of processes."""
    os.nice(int(nice))
    if os.path.exists("/proc/self/autogroup"):
        os.setsid() if os.getpid() != os.getsid(0) else None
        with open("/proc/self/autogroup", "w") as f:
            f.write(nice)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--into", default=HERE)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--held", type=int, default=180)
    parser.add_argument("--without", default="", type=lambda text: text.split(","))
    parser.add_argument("--stores", default="memory,sqlite,redis,postgres,firestore")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--note", default="", help="a sentence for the page")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    options.into = os.path.abspath(options.into)
    if os.environ.get("BENCH_NICE"):
        prefer(os.environ["BENCH_NICE"])
    if os.environ.get("BENCH_REALTIME"):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with us
    load = load_now()
    names = options.stores.split(",")
    # A disk that a server run by another user can reach.
    folder = tempfile.mkdtemp(prefix="syncguard-bench.", dir="/var/tmp")
    os.chmod(folder, 0o755)
    figures = []
    running = {}
    try:
        running = start_stores(names, folder)
        measure(options, running, folder, figures)
    except KeyboardInterrupt:
        options.without.append("what comes after the last figure (interrupted)")
    finally:
        for server in running.values():
            if server is not None:
                server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    kept = os.path.join(options.into, "results.jsonl")
    again = ""
    if options.update:
        figures, again = merge(kept, figures)
    again = (again + " " + options.note).strip()
    with open(kept, "w") as f:
        f.writelines(json.dumps(figure, separators=(",", ":")) + "\n" for figure in figures)
    subprocess.run([os.path.join(options.build, "syncguard-bench"), "--read", kept, "--plot",
                    os.path.join(options.into, "results.svg")], check=False)
    missing = [] if options.update else [step for step in options.without if step] + \
        [name for name in ("memory", "sqlite", "redis", "postgres", "firestore")
         if name not in running]
    write_page(os.path.join(options.into, "RESULTS.md"), options.build, figures, load, missing,
               again)
    if os.path.samefile(options.into, os.path.dirname(os.path.abspath(__file__))):
        subprocess.run([sys.executable, "scripts/figures.py"], check=False,
                       cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    missed = [f for f in figures if "bar" in f and not f["holds"]]
    print("%d figures, %d bars, %d missed" % (len(figures), sum("bar" in f for f in figures),
                                              len(missed)))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
