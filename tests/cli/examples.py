#!/usr/bin/env python3
"""The shell examples of the pages and guides, run as they stand: while another owner holds
the key, the guarded program must not run; when the key is free, it must.

    examples.py COMMAND SOURCE
"""
import concurrent.futures
import glob
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs"))
import pages  # noqa: E402

JOB = "#!/bin/sh\ntouch \"$EXAMPLE_RAN\"\n"
TAKE_VALUES = {"--metrics", "-b", "-w", "-E", "--ttl", "--grace", "--on-lost", "--max-hold", "--min-hold", "--owner", "--slots"}


def of_guide(source, path):
    """The shell blocks that are run."""
    return [block.text for block in pages.blocks(source, os.path.relpath(path, source))
            if block.language == "sh" and "not run" not in block.notes]


def commands(block):
    """An example with a $ or an if in it is one unit; otherwise each line is an example."""
    guarded = [line for line in block.split("\n") if re.search(r"\bsyncguard (run|acquire)\b", line)]
    if any("$(" in line or line.startswith(("if ", " ")) for line in guarded):
        return [block]
    return guarded


def examples(source):
    found = []
    for path in sorted(glob.glob(os.path.join(source, "docs/man/*.1"))):
        found += [(path, text) for block in pages.manual_blocks(source, os.path.relpath(path, source))
                  for text in commands(block.text)]
    for path in [os.path.join(source, "README.md")] + sorted(
            glob.glob(os.path.join(source, "docs/*/*.md"))):
        found += [(path, text) for block in of_guide(source, path) for text in commands(block)]
    return found


def key_of(text):
    """The first word that is neither an option nor the value of one."""
    words = shlex.shlex(re.split(r"\bsyncguard (?:run|acquire)\b", text)[1], posix=True)
    words.whitespace_split = True
    for word in words:
        if word in TAKE_VALUES:
            next(words)
        elif not word.startswith("-"):
            return word.rstrip(");")
    return None


def make(path, text):
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def prepare(folder, command, text):
    """A folder in which every program that an example may call leaves a mark, and `syncguard` uses the
    store of the test instead of -b."""
    os.makedirs(os.path.join(folder, "bin"))
    make(os.path.join(folder, "bin", "syncguard"), "#!%s\nimport os, sys\nwords = sys.argv[1:]\n"
         "while '-b' in words[:words.index('--') if '--' in words else None]:\n"
         "    del words[words.index('-b'):words.index('-b') + 2]\n"
         "os.execv(%r, [%r] + words)\n" % (sys.executable, command, command))
    os.makedirs(os.path.join(folder, "textfile"))  # of --metrics
    for program in ("make", "psql"):
        make(os.path.join(folder, "bin", program), JOB)
    for program in re.findall(r"\./([\w.-]+)", text):
        make(os.path.join(folder, program), JOB)
    for program in re.findall(r"/usr/local/bin/([\w.-]+)", text):
        make(os.path.join(folder, "bin", program), JOB)
    # Programs that only print leave a mark, too.
    return text.replace("/usr/local/bin/", folder + "/bin/").replace(
        "sh -c 'echo ", "sh -c 'touch $EXAMPLE_RAN; echo ")


def run(command, text, held):
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(folder, command, text)
        mark = os.path.join(folder, "ran")
        environment = dict(os.environ, SYNCGUARD_URL="sqlite:%s/locks.db" % folder,
                           EXAMPLE_RAN=mark, HOME=folder,
                           PATH=os.path.join(folder, "bin") + ":" + os.environ["PATH"])
        slots = re.search(r"--slots (\d+)", text)
        for _ in range(int(slots.group(1)) if slots else 1) if held else ():
            subprocess.run([command, "acquire", "--ttl", "1h"] + (slots.group(0).split() if slots else [])
                           + [key_of(text)], check=True, env=environment, stdout=subprocess.DEVNULL)
        process = subprocess.Popen(["sh", "-c", text.replace("-w 10s", "-w 1s")], env=environment,
                                   cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            process.wait(3 if held else 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # it is still waiting
            process.wait()
        return os.path.exists(mark)


def main():
    command, source = os.path.abspath(sys.argv[1]), sys.argv[2]
    if shutil.which("mandoc") is None:
        print("no mandoc")
        return 1
    found = examples(source)

    def run_example(example):
        path, text = example
        name = "%s: %s" % (os.path.relpath(path, source), text.strip().split("\n")[0])
        if run(command, text, True):
            return "RAN WITHOUT THE LOCK  " + name
        return ("ok                    " if run(command, text, False) else
                "DOES NOT RUN AT ALL   ") + name

    # Most of them wait for the lock most of the time.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run_example, found))
    print("\n".join(results))
    faults = sum(not line.startswith("ok") for line in results)
    print("%d examples, %d faults" % (len(found), faults))
    return 1 if faults or len(found) < 8 else 0


if __name__ == "__main__":
    sys.exit(main())
