#!/usr/bin/env python3
"""Checks how the source is laid out: CONTRIBUTING.md and docs/architecture.md have the rules.

    check-layout.py [--root DIR]     prints every finding; exit code 1 if there is one
    check-layout.py --self-test      checks that a broken tree is found broken

No include cycle and no call cycle between the files of a folder; short functions, and short headers
(the public ones and those of bench too); names with the prefix of their backend; the same job in
the same file in every backend. In the whole tree: names of static functions that are unique and
have more than one word; section rules on one line; no gaps inside functions.
"""

import argparse
import os
import re
import sys
import tempfile

FOLDERS = ["src/core", "src/util", "src/cli"]  # and every folder under src/backends
TREES = ["src", "include", "tests", "bench", "fuzz", "examples"]
HEADER_FOLDERS = ["include", "include/syncguard", "include/syncguard/sys", "bench"]
MAX_HEADER, MAX_FUNCTION = 150, 40
PREFIXES = {"redis": "redis", "postgres": "pg", "firestore": "firestore", "sqlite": "sqlite",
            "memory": "memory"}

# Where the function of an operation of the op table is defined. A static function of backend.c may pass
# the call on.
OPERATIONS = {
    "acquire": ["mutate.c"], "release": ["mutate.c"], "extend": ["mutate.c"], "undo": ["mutate.c"],
    "cleanup": ["mutate.c"], "extend_many": ["renew.c"], "undo_many": ["mutate.c", "renew.c"],
    "is_locked": ["read.c"], "lookup": ["read.c"], "list": ["read.c"], "unwatch": ["notify.c"],
    "diagnose": ["diagnose.c"], "after_fork": ["backend.c"], "destroy": ["backend.c"],
}
ALWAYS = ["backend.c", "operations.h", "options.c", "mutate.c", "read.c", "diagnose.c"]
# Names of earlier layouts, and what has replaced them.
RENAMED = {"module.c": "backend.c", "open.c": "backend.c", "memory.c": "backend.c",
           "internal.h": "one header per subject", "ops.c": "mutate.c or read.c",
           "locks.c": "mutate.c", "reads.c": "read.c", "examine.c": "diagnose.c"}

TOKENS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
# The name and the parameters at the end of a function's head; a parameter may be a function.
PARAMETERS = re.compile(r"(\w+)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


class Source:
    """One file: its text without comments and literals, and the functions that it defines."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.path = f"{folder}/{name}"
        with open(self.path, encoding="utf-8") as file:
            self.text = file.read()
        self.code = TOKENS.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), self.text)
        self.includes = [(m.group(1), line_of(self.text, m.start()))
                         for m in INCLUDE.finditer(self.text)]
        self.functions = []  # (name, first line, lines of the body, static)
        self.find_functions()

    def find_functions(self):
        lines = self.code.split("\n")
        start = None
        for number, line in enumerate(lines):
            if line.startswith("{"):
                start = number
            elif line.startswith("}") and start is not None:
                self.add_function(lines, start, number)
                start = None

    def add_function(self, lines, start, end):
        first = start
        while first > 0 and lines[first - 1].strip() and not re.match(r"[#}]", lines[first - 1]):
            first -= 1
        head = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*\)?", "", " ".join(lines[first:start]))
        name = PARAMETERS.search(head)
        if name:
            self.functions.append((name.group(1), first + 1, end - start - 1,
                                   re.search(r"\bstatic\b", head) is not None))


def cycles(edges):
    """The strongly connected sets of more than one node. edges: {node: set of nodes}."""
    def reachable(start):
        seen, work = set(), [start]
        while work:
            for node in edges.get(work.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    work.append(node)
        return seen
    reach = {node: reachable(node) for node in edges}
    found = []
    for node in sorted(edges):
        group = {other for other in reach[node] if node in reach.get(other, ())}
        if node in group and not any(node in known for known in found):
            found.append(group)
    return found


class Checker:
    def __init__(self, root):
        self.root = root
        self.findings = []

    def find(self, path, line, text):
        self.findings.append(f"{os.path.relpath(path, self.root)}:{line}: {text}")

    def load(self, folder, endings=(".c", ".h")):
        return [Source(folder, name) for name in sorted(os.listdir(folder))
                if name.endswith(endings)]

    def check_lengths(self, source):
        count = source.text.count("\n")
        if source.name.endswith((".h", ".hpp")) and count > MAX_HEADER:
            self.find(source.path, count, f"header of {count} lines, at most {MAX_HEADER}")
        for name, line, length, _ in source.functions:
            if length > MAX_FUNCTION:
                self.find(source.path, line,
                          f"{name} has {length} lines, at most {MAX_FUNCTION}")

    def report_cycles(self, sources, kind, uses):
        """uses: {file: {used file: (line, by what)}}."""
        by_name = {source.name: source for source in sources}
        for group in cycles({name: set(used) for name, used in uses.items()}):
            for name in sorted(group):
                for other, (line, what) in sorted(uses[name].items()):
                    if other in group:
                        self.find(by_name[name].path, line,
                                  f"{kind} cycle of {', '.join(sorted(group))}: "
                                  f"uses {other} ({what})")

    def check_includes(self, sources):
        names = {source.name for source in sources}
        uses = {source.name: {} for source in sources}
        for source in sources:
            for included, line in source.includes:
                name = os.path.basename(included)
                if name in names and included in (name, f"{os.path.basename(source.folder)}/{name}"):
                    uses[source.name].setdefault(name, (line, "include"))
        self.report_cycles(sources, "include", uses)

    def check_calls(self, sources):
        defined = {name: source.name for source in sources
                   for name, _, _, static in source.functions if not static}
        uses = {source.name: {} for source in sources}
        for source in sources:
            if not source.name.endswith(".c"):
                continue
            for match in re.finditer(r"\b\w+\b", source.code):
                other = defined.get(match.group(0))
                if other and other != source.name:
                    uses[source.name].setdefault(
                        other, (line_of(source.code, match.start()), match.group(0)))
        self.report_cycles(sources, "call", uses)

    def check_prefixes(self, source, word):
        prefix = f"sg_{word}_"
        for name, line, _, static in source.functions:
            if not static and not name.startswith((prefix, "syncguard_")):
                self.find(source.path, line, f"{name} lacks the prefix {prefix}")
        if not source.name.endswith(".h"):
            return
        types = re.finditer(r"^\s*(?:typedef\s+)?(?:struct|enum|union)\s+(\w+)\s*\{"
                            r"|^\}\s*(\w+)\s*;", source.code, re.M)
        for match in types:
            name = match.group(1) or match.group(2)
            if not (name + "_").startswith(prefix):
                self.find(source.path, line_of(source.code, match.start()),
                          f"the type {name} lacks the prefix {prefix}")

    def check_plan(self, folder, sources):
        by_name = {source.name: source for source in sources}
        # The memory backend is small enough for one file.
        required = ["backend.c"] if os.path.basename(folder) == "memory" else ALWAYS
        for name in required:
            if name not in by_name:
                self.find(f"{folder}/{name}", 1, "missing: every backend has this file")
        for name, better in RENAMED.items():
            if name in by_name:
                self.find(f"{folder}/{name}", 1, f"not a name of the floor plan: {better}")
        defined = {name: source for source in sources for name, _, _, _ in source.functions}
        for source in sources:
            for table in re.finditer(r"syncguard_backend_ops\s+\w+\s*=\s*\{(.*?)\};", source.code,
                                     re.S):
                if source.name != "backend.c":
                    self.find(source.path, line_of(source.code, table.start()),
                              "the op table belongs into backend.c")
                for entry in re.finditer(r"\.(\w+)\s*=\s*(\w+)", table.group(1)):
                    self.check_operation(entry.group(1), entry.group(2), defined)

    def check_operation(self, operation, function, defined):
        source = defined.get(function)
        allowed = OPERATIONS.get(operation)
        if source is None or allowed is None or source.name in allowed:
            return
        line, static = next((line, static) for name, line, _, static in source.functions
                            if name == function)
        if not (static and source.name == "backend.c"):
            self.find(source.path, line,
                      f"{function} is the operation {operation}: it belongs into {' or '.join(allowed)}")

    def check_static_names(self, sources):
        """A stack trace or a grep must lead to one place."""
        static, external = {}, {}
        for source in sources:
            for name, line, _, is_static in source.functions:
                kind = static if is_static else external
                kind.setdefault(name, {}).setdefault(source.path, line)
        for name, places in sorted(static.items()):
            paths = sorted(places)
            taken = sorted(external.get(name, ())) or paths[:1]
            for path in paths:
                if path not in taken:
                    self.find(path, places[path],
                              f"{name} is a function of {os.path.relpath(taken[0], self.root)} too")
            if "_" not in name:
                self.find(paths[0], places[paths[0]],
                          f"{name}: the name does not say what it acts on and what it does")

    def check_dialect(self, source):
        for match in re.finditer(r"^[ \t]*(?:/\* ?|// ?)[-=*]{2,}.*$", source.text, re.M):
            if not re.match(r"\s*/\* ---- \S.* ---- \*/$", match.group(0)):
                self.find(source.path, line_of(source.text, match.start()),
                          "a section rule has the form /* ---- subject ---- */, on one line")
        text, code = source.text.split("\n"), source.code.split("\n")
        inside = False
        for number, line in enumerate(code[:-1], 1):
            if line.startswith("{"):
                inside = text[number - 2].endswith(")")
            elif line.startswith("}"):
                inside = False
            elif inside and not text[number - 1].strip():
                follows = text[number].strip()
                if text[number - 2] == "{" or not follows.startswith(("/*", "*", "//")):
                    self.find(source.path, number,
                              "inside a function, a blank line is allowed only in front of a comment")

    def check_tree(self):
        sources = []
        for tree in TREES:
            for folder, _, _ in os.walk(os.path.join(self.root, tree)):
                sources += self.load(folder)
        self.check_static_names(sources)
        for source in sources:
            self.check_dialect(source)

    def run(self):
        self.check_tree()
        backends = os.path.join(self.root, "src/backends")
        folders = [os.path.join(self.root, folder) for folder in FOLDERS]
        folders += [os.path.join(backends, name) for name in sorted(os.listdir(backends))]
        for folder in filter(os.path.isdir, folders):
            sources = self.load(folder)
            for source in sources:
                self.check_lengths(source)
            self.check_includes(sources)
            self.check_calls(sources)
            if os.path.dirname(folder) == backends:
                for source in sources:
                    self.check_prefixes(source, PREFIXES.get(os.path.basename(folder), "?"))
                self.check_plan(folder, sources)
        for folder in (os.path.join(self.root, folder) for folder in HEADER_FOLDERS):
            for source in self.load(folder, (".h", ".hpp")) if os.path.isdir(folder) else []:
                self.check_lengths(source)
        return self.findings


BROKEN = {
    "src/core/a.h": '#include "b.h"\n',
    "src/core/b.h": '#include "core/a.h"\n',
    "src/core/a.c": "int sg_a(void)\n{\n    return sg_b(); /* sg_c */\n}\n",
    "src/core/b.c": "static int sg_a_b(void)\n{\n    return 0;\n}\n\n"
                    "int sg_b(void)\n{\n    return sg_c();\n}\n",
    "src/core/c.c": "int\nsg_c(void)\n{\n    return sg_a();\n}\n",
    "src/core/d.c": 'int sg_d(void)\n{\n    use("sg_a");\n    return sg_a();\n}\n',
    "src/util/long.h": "\n" * (MAX_HEADER + 1),
    "src/util/long.c": "int sg_long(void)\n{\n" + "    go();\n" * (MAX_FUNCTION + 1) + "}\n",
    "include/long.h": "\n" * (MAX_HEADER + 1),
    "include/syncguard/long.hpp": "\n" * (MAX_HEADER + 1),
    "include/syncguard/short.h": "\n" * MAX_HEADER,
    "include/syncguard/sys/long.h": "\n" * (MAX_HEADER + 1),
    "bench/long.h": "\n" * (MAX_HEADER + 1),
    "bench/long.c": "\n" * (MAX_HEADER + 1),
    "src/backends/redis/internal.h": "typedef struct sg_other {\n    int x;\n} sg_redis_thing;\n",
    **{f"src/backends/redis/{name}": "" for name in ALWAYS},
    "src/backends/redis/mutate.c": "int sg_acquire(void)\n{\n    return 0;\n}\n",
    "src/backends/redis/read.c": "int sg_redis_release(void)\n{\n    return 0;\n}\n",
    "src/core/e.c": "/* ---- a rule that is broken\n */\n/* ---- a rule ---- */\n"
                    "static int sg_e_f(void)\n{\n\n    /* first */\n    go();\n\n    /* then */\n    go();\n"
                    "\n    return 0;\n}\n",
    "tests/core/e.c": "static void SG_PRINTF(2, 3) sg_e_f(int a)\n{\n}\n"
                      "static __attribute__((noinline)) int once(void)\n{\n}\n",
    "src/backends/redis/backend.c": "static int redis_list(void)\n{\n    return 0;\n}\n\n"
                                    "static const syncguard_backend_ops OPS = {\n"
                                    "    .acquire = sg_acquire,\n    .list = redis_list,\n"
                                    "    .release = sg_redis_release,\n};\n",
}
EXPECTED = [
    "src/core/a.c:3: call cycle of a.c, b.c, c.c: uses b.c (sg_b)",
    "src/core/b.c:8: call cycle of a.c, b.c, c.c: uses c.c (sg_c)",
    "src/core/c.c:4: call cycle of a.c, b.c, c.c: uses a.c (sg_a)",
    "src/core/a.h:1: include cycle of a.h, b.h: uses b.h (include)",
    "src/core/b.h:1: include cycle of a.h, b.h: uses a.h (include)",
    "src/util/long.h:151: header of 151 lines, at most 150",
    "include/long.h:151: header of 151 lines, at most 150",
    "include/syncguard/long.hpp:151: header of 151 lines, at most 150",
    "include/syncguard/sys/long.h:151: header of 151 lines, at most 150",
    "bench/long.h:151: header of 151 lines, at most 150",
    "src/util/long.c:1: sg_long has 41 lines, at most 40",
    "src/backends/redis/internal.h:1: the type sg_other lacks the prefix sg_redis_",
    "src/backends/redis/internal.h:1: not a name of the floor plan: one header per subject",
    "src/backends/redis/mutate.c:1: sg_acquire lacks the prefix sg_redis_",
    "src/core/e.c:1: a section rule has the form /* ---- subject ---- */, on one line",
    "src/core/e.c:6: inside a function, a blank line is allowed only in front of a comment",
    "src/core/e.c:12: inside a function, a blank line is allowed only in front of a comment",
    "tests/core/e.c:1: sg_e_f is a function of src/core/e.c too",
    "tests/core/e.c:4: once: the name does not say what it acts on and what it does",
    "src/backends/redis/read.c:1: sg_redis_release is the operation release: it belongs into mutate.c",
]


def self_test():
    with tempfile.TemporaryDirectory() as root:
        for path, text in BROKEN.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        found = Checker(root).run()
    missed = sorted(set(EXPECTED) - set(found))
    surplus = sorted(set(found) - set(EXPECTED))
    for line in missed:
        print(f"not found: {line}")
    for line in surplus:
        print(f"found, but right: {line}")
    return not missed and not surplus


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 0 if self_test() else 1
    findings = Checker(os.path.abspath(arguments.root)).run()
    print("\n".join(findings))
    if findings:
        print(f"check-layout: {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
