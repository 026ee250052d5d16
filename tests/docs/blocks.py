#!/usr/bin/env python3
"""Every fenced block of every page does what it says: its language decides how it is tested.

    sh        run, in a sandbox with stores of its own; each command must succeed
    console   lines after $ are run, the others are what they print (... stands for anything)
    c, cpp    compiled; run, if it is a program
    python    run, with the package of bindings/python
    cmake     configured against an installed tree
    sql       run by psql
    crontab   the fields are checked, the commands are run
    ini       parsed; units of systemd are verified, and what they start is run
    yaml      parsed; the commands of containers and of CI jobs are run
    json      parsed

The examples of the man pages are shell texts, too. Blocks of one page share a folder and run in order. A block that is not run says why (see pages.py),
and is listed.

    blocks.py BUILD SOURCE [PAGE...]
    blocks.py --self-test BUILD
"""
import configparser
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import yaml

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402
import sandbox  # noqa: E402
import servers  # noqa: E402  (sandbox sets the path)


class Fault(Exception):
    pass


def shell(box, text, expected=0):
    code, out = box.run(text)
    if code != expected:
        raise Fault("exit code %s instead of %s\n%s" % (code, expected, out))
    return out


def check_targets(source, block):
    """What a text tells to make must exist; the programs of the sandbox do not know."""
    with open(os.path.join(source, "Makefile"), encoding="utf-8") as f:
        targets = set(re.findall(r"^([a-z-]+):", f.read(), re.M))
    for line in re.findall(r"^(?:sudo )?make ([^#\n]*)", block.text, re.M):
        for word in shlex.split(line):
            if "=" not in word and word not in targets:
                raise Fault("there is no target " + word)


def run_sh(box, block):
    expected = int(block.notes.get("exit", 0))
    before = os.path.exists(box.ran)
    out = shell(box, block.text, expected)
    if expected == 0 and "syncguard run" in block.text and not before and not os.path.exists(box.ran) \
            and not out.strip():
        raise Fault("nothing was run under the lock")


def pattern_of(expected):
    """Output may differ where ... stands, and in the width of columns."""
    words = [r"\s+".join(re.escape(word) for word in line.split()) for line in expected.split("\n")]
    return "\n".join(words).replace(re.escape("..."), ".*?")


def run_console(box, block):
    steps = re.split(r"^\$ ", block.text, flags=re.M)
    if steps[0].strip():
        raise Fault("it does not begin with $")
    for step in steps[1:]:
        command, _, expected = step.partition("\n")
        out = box.run(command, shell=("sh", "-u"))[1]
        out = "\n".join(" ".join(line.split()) for line in out.replace(box.folder, "").strip().split("\n"))
        if not re.fullmatch(pattern_of(expected.strip()), out, re.S):
            raise Fault("$ %s\nprints\n%s\ninstead of\n%s" % (command, out, expected.strip()))


def run_c(box, block):
    is_program = re.search(r"^int main\(", block.text, re.M)
    text = block.text
    urls = box.stores.for_text(text)[0]
    for scheme, url in urls.items():
        text = re.sub(r'"%s[+\w]*://[^"]*"' % scheme, '"%s"' % url, text)
    source = box.write("block." + block.language, text)
    compiler = {"c": ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L"], "cpp": ["c++", "-std=c++17"]}
    command = compiler[block.language] + ["-Wall", "-Wextra", "-Werror", "-I",
                                          os.path.join(box.prefix, "include"), source]
    linked = ["-lsyncguard-" + name for name in
              re.findall(r"<syncguard/(sqlite|redis|postgres|firestore)\.h>", text)]
    command += ["-o", os.path.join(box.folder, "block"), "-L", os.path.join(box.prefix, "lib"),
                *linked, "-lsyncguard", "-lpthread"] if is_program else ["-c", "-o", source + ".o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Fault(done.stderr)
    if is_program:
        shell(box, "SYNCGUARD_URL=sqlite:%s/locks.db ./block" % box.folder)


def run_python(box, block):
    text = block.text
    for scheme, url in box.stores.for_text(text)[0].items():
        text = re.sub(r'"%s[+\w]*://[^"]*"' % scheme, '"%s"' % url, text)
    box.write("block.py", text)
    package = os.path.join(os.path.dirname(servers.__file__), "../../bindings/python/src")
    shell(box, "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=%s SYNCGUARD_URL=sqlite:%s/locks.db python3 block.py"
          % (shlex.quote(os.path.abspath(package)), box.folder))


def run_cmake(box, block):
    folder = os.path.join(box.folder, "cmake")
    os.makedirs(folder, exist_ok=True)
    names = set(re.findall(r"target_link_libraries\((\w+)", block.text))
    with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as f:
        f.write("cmake_minimum_required(VERSION 3.18)\nproject(block C)\n")
        f.writelines("add_executable(%s main.c)\n" % name for name in names)
        f.write(block.text)
    with open(os.path.join(folder, "main.c"), "w", encoding="utf-8") as f:
        f.write("#include <syncguard.h>\nint main(void) { return 0; }\n")
    shell(box, "cmake -S cmake -B cmake/build && cmake --build cmake/build")


def run_sql(box, block):
    box.write("block.sql", block.text)
    shell(box, "psql -q -X -v ON_ERROR_STOP=1 -v fence=000000000000001 -c 'CREATE SCHEMA example' "
          "-c 'SET search_path TO example, public' -f block.sql -c 'DROP SCHEMA example CASCADE'")


def run_crontab(box, block):
    for line in block.text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        setting = re.match(r"([A-Z_]+)=(.*)$", line)
        if setting:
            os.environ[setting.group(1)] = box.localized(setting.group(2))
            continue
        words = line.split(None, 5)
        if len(words) < 6 or not all(re.fullmatch(r"[\d*/,-]+", word) for word in words[:5]):
            raise Fault("not a line of a crontab: " + line)
        if "%" in words[5]:
            raise Fault("cron ends a command at %: " + line)
        shell(box, words[5])


def start_of(box, unit):
    """What a unit starts."""
    if unit.has_option("Service", "ExecStart"):
        settings = ""
        if unit.has_option("Service", "Environment"):
            settings = "export %s; " % unit.get("Service", "Environment")
        shell(box, settings + unit.get("Service", "ExecStart"))


def verify(box, block):
    """systemd's own opinion, where it is installed. The programs need not be there."""
    name = block.notes.get("file")
    if name is None:
        raise Fault("a unit needs <!-- file: NAME.service -->")
    if shutil.which("systemd-analyze") is None:
        return
    folder = os.path.join(box.folder, "units")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, os.path.basename(name))
    with open(path, "w", encoding="utf-8") as f:
        f.write(box.localized(block.text))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True,
                          text=True, check=False, env=dict(os.environ, SYSTEMD_UNIT_PATH=folder + ":"))
    about = [line for line in done.stderr.split("\n") if os.path.basename(name) in line]
    if about:
        raise Fault("\n".join(about))


def run_ini(box, block):
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    try:
        unit.read_string(block.text)
    except configparser.Error as error:
        raise Fault(str(error)) from error
    if unit.has_section("Unit"):
        box.prepare(block.text)
        verify(box, block)
        start_of(box, unit)


def containers(document):
    """The containers of a Kubernetes object, wherever its pod template is."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("containers", "initContainers"):
                yield from value
            else:
                yield from containers(value)


def jobs(document):
    """The shell texts of a CI file: `run` of GitHub's steps, `script` of GitLab's jobs."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == "run" and isinstance(value, str):
                yield value
            elif name == "script":
                yield "\n".join(value)
            else:
                yield from jobs(value)
    elif isinstance(document, list):
        for value in document:
            yield from jobs(value)


def run_container(box, container):
    words = container.get("command", []) + container.get("args", [])
    settings = "".join("export %s=%s; " % (one["name"], shlex.quote(one["value"]))
                       for one in container.get("env", []) if "value" in one)
    if words:
        shell(box, settings + " ".join(shlex.quote(word) for word in words))


def run_yaml(box, block):
    try:
        documents = list(yaml.safe_load_all(block.text))
    except yaml.YAMLError as error:
        raise Fault(str(error)) from error
    for document in documents:
        if isinstance(document, dict) and "kind" in document:
            if not {"apiVersion", "metadata"} <= set(document):
                raise Fault("an object of Kubernetes without apiVersion or metadata")
            for container in containers(document):
                run_container(box, container)
        else:
            for text in jobs(document):
                shell(box, text)


def run_json(_, block):
    try:
        json.loads(block.text)
    except ValueError as error:
        raise Fault(str(error)) from error


RUN = {"sh": run_sh, "console": run_console, "c": run_c, "cpp": run_c, "python": run_python, "cmake": run_cmake, "sql": run_sql,
       "crontab": run_crontab, "ini": run_ini, "yaml": run_yaml, "json": run_json}


def run_block(source, box, block):
    if block.language == "sh":
        check_targets(source, block)
    if "file" in block.notes:
        box.write(block.notes["file"], block.text)
    if "not run" in block.notes:
        if block.language == "sh" and box.run(block.text, shell=("sh", "-n"))[0] != 0:
            raise Fault("not a shell text")
        return
    if block.language not in RUN:
        raise Fault("no test for this language; a block that cannot be run says why: "
                    "<!-- not run: REASON -->")
    if "before" in block.notes:
        shell(box, block.notes["before"])
    RUN[block.language](box, block)


# What the examples of a man page take for granted.
HELD = {"docs/man/syncguard-release.1": "syncguard acquire -q --ttl 10m deploy"}


def run_manual(box, block):
    """A command that finds no lock exits with 1."""
    if block.page in HELD:
        shell(box, HELD[block.page])
    code, out = box.run(block.text, shell=("sh", "-u"))
    if code not in (0, 1):
        raise Fault("exit code %s\n%s" % (code, out))


def blocks_of(source, page):
    return pages.manual_blocks(source, page) if page.endswith(".1") else pages.blocks(source, page)


def run_page(source, page, make_box):
    """Faults, the number of blocks that were run, and those that were not."""
    found = blocks_of(source, page)
    faults, left = [], []
    if not found:
        return faults, 0, left
    box = make_box()
    for block in found:
        try:
            if page.endswith(".1"):
                run_manual(box, block)
            else:
                run_block(source, box, block)
        except (Fault, OSError, subprocess.SubprocessError) as fault:
            faults.append("FAULT %s: %s" % (block, fault))
        if "not run" in block.notes:
            left.append("not run: %s: %s" % (block, block.notes["not run"]))
    return faults, len(found) - len(left), left


ON_DISK = ["docs/backends/sqlite.md"]  # its doctor warns of a file in memory


def check(build, source, wanted):
    """Faults, blocks that were run, blocks that were not."""
    folder = servers.make_folder("syncguard-docs-")
    files = tempfile.mkdtemp(prefix="syncguard-docs-", dir="/var/tmp")
    stores = sandbox.Stores(folder, build)
    faults, left, count = [], [], 0
    try:
        prefix = sandbox.install(build, folder)
        for number, page in enumerate(wanted):
            place = os.path.join(files if page in ON_DISK else folder, "page%d" % number)
            result = run_page(source, page,
                              lambda at=place: sandbox.Sandbox(at, stores, build, prefix))
            faults, count, left = faults + result[0], count + result[1], left + result[2]
            stores.forget()
            for name in ("SYNCGUARD_URL", "MAILTO", "SHELL"):
                os.environ.pop(name, None)
    finally:
        stores.stop()
        sandbox.remove(folder)
        sandbox.remove(files)
    return faults, count, left


BROKEN = """```sh
false; true
```
```sh
syncguard run -n k -- ./nothing && ./missing/program
```
<!-- exit: 3 -->
```sh
exit 4
```
```console
$ echo one
two
```
```c
int main(void) { return 1; }
```
```c
int f(void) { return undeclared; }
```
```json
{"a": }
```
```yaml
a: [
```
```yaml
job:
  script:
    - exit 5
```
```crontab
* * * * echo four fields
```
<!-- file: a.service -->
```ini
[Unit]
[Service]
ExecStart=/bin/false
```
```sql
SELECT FROM WHERE;
```
```sh
make nonsense
```
```
no language
```
"""


def self_test(build):
    """Each block of a page in which nothing is right is a fault."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("page.md", BROKEN), ("Makefile", "all:\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        faults = check(build, folder, ["page.md"])[0]
    expected = BROKEN.count("```") // 2
    found = sorted(int(re.search(r"page.md:(\d+)", fault).group(1)) for fault in faults)
    print("%d of %d broken blocks found, in lines %s" % (len(faults), expected, found))
    return 0 if len(faults) == expected else 1


def main():
    if sys.argv[1] == "--self-test":
        return self_test(os.path.abspath(sys.argv[2]))
    build, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    manual = sorted(glob.glob(os.path.join(source, "docs/man/*.1")))
    wanted = sys.argv[3:] or pages.all_pages(source) + [os.path.relpath(p, source) for p in manual]
    faults, count, left = check(build, source, wanted)
    if shutil.which("systemd-analyze") is None:
        print("systemd-analyze is not installed: units are parsed, and what they start is run")
    print("\n".join(left + faults))
    print("%d blocks run, %d not run, %d faults" % (count, len(left), len(faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
