#!/usr/bin/env python3
"""The shell examples of the pages and guides, run as they stand: while somebody else holds the
key, what they guard must not run; when it is free, it must.

    examples.py COMMAND SOURCE
"""
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

JOB = "#!/bin/sh\ntouch \"$EXAMPLE_RAN\"\n"
TAKE_VALUES = {"-b", "-w", "-E", "--ttl", "--grace", "--on-lost", "--max-hold", "--owner"}


def of_page(path):
    """The literal blocks of a man page and its .Dl lines, as a reader sees them."""
    text = subprocess.run(["mandoc", "-Tmarkdown", path], check=True, capture_output=True,
                          text=True).stdout
    blocks, block = [], []
    for line in text.split("\n") + [""]:
        if line.startswith("\t"):
            block.append(line[1:])
        elif block:
            blocks.append("\n".join(block))
            block = []
    return blocks


def of_guide(path):
    """The fenced blocks for a shell, or for nothing in particular."""
    blocks, block, kind = [], [], None
    with open(path) as f:
        for line in f:
            fence = re.match(r" *```(.*)$", line)
            if fence is None:
                block.append(line)
            elif kind is None:
                kind, block = fence.group(1), []
            else:
                blocks += ["".join(block)] if kind in ("", "sh") else []
                kind = None
    return blocks


def commands(block):
    """An example with a $ in it belongs together; else each line is one of its own."""
    guarded = [line for line in block.split("\n") if re.search(r"\bsyncguard (run|acquire)\b", line)]
    if any("$(" in line for line in guarded):
        return [block]
    return guarded


def examples(source):
    found = []
    for path in sorted(glob.glob(os.path.join(source, "docs/man/*.1"))):
        found += [(path, text) for block in of_page(path) for text in commands(block)]
    for path in [os.path.join(source, "README.md")] + sorted(
            glob.glob(os.path.join(source, "docs/*/*.md"))):
        found += [(path, text) for block in of_guide(path) for text in commands(block)]
    return found


def key_of(text):
    words = shlex.split(re.search(r"\bsyncguard (?:run|acquire)\b([^|)\n]*)", text).group(1) or "",
                        comments=True)
    while words[0].startswith("-"):
        words = words[2:] if words[0] in TAKE_VALUES else words[1:]
    return words[0]


def make(path, text):
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def prepare(folder, command, text):
    """A folder in which everything that an example may call marks that it ran, and `syncguard` uses
    the store of the test whatever -b says."""
    os.makedirs(os.path.join(folder, "bin"))
    make(os.path.join(folder, "bin", "syncguard"), "#!%s\nimport os, sys\nwords = sys.argv[1:]\n"
         "while '-b' in words[:words.index('--') if '--' in words else None]:\n"
         "    del words[words.index('-b'):words.index('-b') + 2]\n"
         "os.execv(%r, [%r] + words)\n" % (sys.executable, command, command))
    for program in ("make", "psql"):
        make(os.path.join(folder, "bin", program), JOB)
    for program in re.findall(r"\./([\w.-]+)", text):
        make(os.path.join(folder, program), JOB)
    for program in re.findall(r"/usr/local/bin/([\w.-]+)", text):
        make(os.path.join(folder, "bin", program), JOB)
    # What only prints marks it, too.
    return text.replace("/usr/local/bin/", folder + "/bin/").replace(
        "sh -c 'echo ", "sh -c 'touch $EXAMPLE_RAN; echo ")


def run(command, text, held):
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(folder, command, text)
        mark = os.path.join(folder, "ran")
        environment = dict(os.environ, SYNCGUARD_URL="sqlite:%s/locks.db" % folder,
                           EXAMPLE_RAN=mark, HOME=folder,
                           PATH=os.path.join(folder, "bin") + ":" + os.environ["PATH"])
        if held:
            subprocess.run([command, "acquire", "--ttl", "1h", key_of(text)], check=True,
                           env=environment, stdout=subprocess.DEVNULL)
        process = subprocess.Popen(["sh", "-c", text.replace("-w 10s", "-w 1s")], env=environment,
                                   cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            process.wait(3 if held else 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # it waits
            process.wait()
        return os.path.exists(mark)


def main():
    command, source = os.path.abspath(sys.argv[1]), sys.argv[2]
    if shutil.which("mandoc") is None:
        print("no mandoc")
        return 1
    faults = 0
    found = examples(source)
    for path, text in found:
        name = "%s: %s" % (os.path.relpath(path, source), text.strip().split("\n")[0])
        if run(command, text, True):
            print("RAN WITHOUT THE LOCK  " + name)
            faults += 1
        elif not run(command, text, False):
            print("DOES NOT RUN AT ALL   " + name)
            faults += 1
        else:
            print("ok                    " + name)
    print("%d examples, %d faults" % (len(found), faults))
    return 1 if faults or len(found) < 8 else 0


if __name__ == "__main__":
    sys.exit(main())
