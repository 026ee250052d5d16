#!/bin/sh
# Rules that no compiler checks: calls that a library must not make, memory that does not come from
# the allocator hook, headers of another layer, unfinished code, overlong files, copied code.
#
# A line that must break a rule says so and gives the reason: "check-source: allow NAME, reason" in
# a comment on that line or the one above.
set -eu
cd "$(dirname "$0")/.."

python3 - <<'END'
import re
import subprocess
import sys

BANNED = """strcpy strcat strncpy strncat sprintf vsprintf gets atoi atol atoll atof strtok strerror
            abort exit _exit quick_exit system popen signal printf vprintf puts putchar perror
            fprintf vfprintf fputs sleep usleep nanosleep clock_nanosleep rand random srand
            localtime gmtime asctime ctime gethostbyname alloca""".split()
# Memory goes through sys/alloc.h, so that the hook and the failure tests see all of it.
MEMORY = "malloc calloc realloc free strdup strndup asprintf vasprintf".split()
# In the command and in tests, only calls that are never right.
ALWAYS = "strcpy strcat sprintf vsprintf gets atoi atol atoll atof strtok alloca".split()
MAX_FILE = 700
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented", re.I)
MACHINE = re.compile(r"(?<![\w.$}])/(home|work)/\w")
FOREIGN = re.compile(r"(^|/)(vendor|vendored|third[-_]?party|external|contrib)/", re.I)

faults = []


def fault(path, line, text):
    faults.append(f"{path}:{line}: {text}")


def blank(match):
    """A comment or literal replaced by blanks, line breaks kept."""
    return re.sub(r"[^\n]", " ", match.group(0))


TOKENS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def allowed(lines, number, name):
    for at in (number - 1, number - 2):
        if 0 <= at < len(lines):
            found = re.search(r"check-source: allow (\w+), \S", lines[at])
            if found and found.group(1) == name:
                return True
    return False


def check_calls(path, text, lines):
    code = TOKENS.sub(blank, text)
    if path.startswith(("src/cli/", "tests/", "bench/", "fuzz/", "examples/")):
        banned = ALWAYS
    elif path in ("src/util/alloc.c", "src/core/alloc.c"):
        banned = BANNED
    else:
        banned = BANNED + MEMORY
    for number, line in enumerate(code.split("\n"), 1):
        # A name after "." or "->" is a member, not the function.
        for match in re.finditer(r"(?<![\w.>])(" + "|".join(banned) + r")\s*\(", line):
            if not allowed(lines, number, match.group(1)):
                fault(path, number, f"{match.group(1)}() is not allowed here")


# Which layer may not include which (docs/architecture.md).
LAYERS = [
    ("src/cli/", r"syncguard/sys/|core/|util/|backends/", "the command uses public headers only"),
    ("src/backends/(?!memory/)", r"core/|util/|cli/", "a module uses public and sys/ headers only"),
    ("src/core/", r"sqlite3|hiredis|libpq|curl|jansson|openssl", "the core links no client library"),
    ("src/util/", r"core/|backends/|cli/", "util is below everything else"),
]


def check_layers(path, lines):
    for layer, closed, rule in LAYERS:
        if re.match(layer, path):
            for number, line in enumerate(lines, 1):
                if re.match(r'\s*#\s*include\s+["<](' + closed + ")", line):
                    fault(path, number, rule)


files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                       check=True, capture_output=True).stdout.decode().split("\0")
for path in filter(None, files):
    if FOREIGN.search(path):
        fault(path, 1, "looks like somebody else's code: nothing is vendored")
    try:
        text = open(path, encoding="utf-8").read()
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        continue
    lines = text.split("\n")
    is_c = path.endswith((".c", ".h"))
    if path != "scripts/check-source.sh" and path.startswith(
            ("src/", "include/", "tests/", "bench/", "fuzz/", "examples/", "scripts/", "cmake/")):
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line) and not allowed(lines, number, "word"):
                fault(path, number, "unfinished: " + line.strip()[:60])
    for number, line in enumerate(lines, 1):
        if path != "scripts/check-source.sh" and MACHINE.search(line):
            fault(path, number, "a path of one machine: " + line.strip()[:60])
    if is_c:
        check_layers(path, lines)
        check_calls(path, text, lines)
        if path.startswith(("src/", "include/")):
            count = text.count("\n")
            if count > MAX_FILE:
                fault(path, count, f"{count} lines, at most {MAX_FILE}")
            if not text.startswith("/*"):
                fault(path, 1, "no head comment")

print("\n".join(faults))
if faults:
    sys.exit(f"check-source: {len(faults)} places")
END
