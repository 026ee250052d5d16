"""Where the blocks of a page run: a folder with the files that they name, programs that only note
that they ran, and a command `syncguard` whose stores are servers of this test.
"""

import os
import re
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import servers  # noqa: E402

# Programs of the examples. They note that they ran and keep the caller's environment for a look.
JOB = "#!/bin/sh\necho \"$0\" >>\"$EXAMPLE_RAN\"\n"
STUBS = ("make", "sudo", "systemctl", "kubectl", "logger")
# Names of programs that are created where an example calls them.
CALLED = (re.compile(r"(?<![\w/])\./([\w.-]+)"), re.compile(r"/usr/local/bin/([\w.-]+)"))

# The command of the sandbox: URLs of a text become those of the servers, by their scheme.
WRAPPER = """#!%(python)s
import os, re, sys
stores = %(stores)r

def mapped(url):
    if url.startswith("@"):
        url = open(url[1:]).readline().strip()
    if url.startswith("sqlite:"):
        path = %(folder)r + url[7:].split("?")[0] if not url[7:].startswith(%(folder)r) else url[7:]
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return "sqlite:" + path
    for scheme, store in stores.items():
        if re.match(scheme + r"(\\+\\w+|ql|s)?:", url):
            return store
    return url

words = sys.argv[1:]
end = words.index("--") if "--" in words else len(words)
for i in range(end - 1):
    if words[i] in ("-b", "--backend"):
        words[i + 1] = mapped(words[i + 1])
etc = %(folder)r + "/etc/syncguard/url"
url = os.environ.get("SYNCGUARD_URL")
if url is None and os.path.exists(etc):
    url = "@" + etc
os.environ["SYNCGUARD_URL"] = mapped("sqlite:/locks.db" if url is None else url)
os.execv(%(command)r, [%(command)r] + words)
"""


class Stores:
    """Servers that start when a block needs them, and stop at the end."""

    def __init__(self, folder, build):
        self.folder, self.build, self.running = folder, build, {}

    def get(self, name):
        if name not in self.running:
            place = os.path.join(self.folder, name)
            os.mkdir(place)
            server = servers.make(name, place)
            self.running[name] = server
            server.start()
            server.setup(self.build)
        return self.running[name]

    def for_text(self, text):
        """URL by scheme, and the variables of those stores that the text uses."""
        urls, environment = {}, {}
        for scheme, name in (("redis", "redis"), ("postgres", "postgres"),
                             ("firestore", "firestore-fake")):
            if re.search(scheme + r"[+\w]*:", text) or (scheme == "postgres" and
                                                        re.search(r"\bpsql\b|\bPG[A-Z]+=", text)):
                server = self.get(name)
                urls[scheme] = server.url()
                environment.update(server.environment())
        if "postgres" in urls:
            server = self.get("postgres")
            environment.update(PGHOST="127.0.0.1", PGPORT=str(server.port), PGUSER="postgres",
                               PGDATABASE="postgres")
        return urls, environment

    def forget(self):
        """The next page finds no lock of the last one."""
        if "redis" in self.running:
            self.running["redis"].command("FLUSHALL")
        if "postgres" in self.running:
            self.running["postgres"].sql("TRUNCATE syncguard_locks")

    def stop(self):
        for server in self.running.values():
            server.stop()


class Sandbox:
    """One page."""

    def __init__(self, folder, stores, build, prefix):
        self.folder, self.stores, self.build, self.prefix = folder, stores, build, prefix
        self.ran = os.path.join(folder, "ran")
        os.makedirs(os.path.join(folder, "bin"))
        os.makedirs(os.path.join(folder, "etc/syncguard"))
        for name in STUBS:
            self.program(os.path.join("bin", name), JOB)

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def write(self, name, text):
        if os.path.isabs(name):
            name = self.localized(name)
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def localized(self, text):
        """Paths of the machine become paths of the sandbox."""
        text = re.sub(r"/usr(/local)?/bin/(?!env\b)", self.folder + "/bin/", text)
        return re.sub(r"(?<![\w.$}~])/(etc|var/lib|srv)/", self.folder + r"/\1/", text)

    def prepare(self, text):
        """The text as it can be run here, and its environment."""
        for place, pattern in zip(("", "bin"), CALLED):
            for name in pattern.findall(text):
                if name != "syncguard":
                    self.program(os.path.join(place, name), JOB)
        for name in re.findall(r"/(?:etc|var/lib|srv)/([\w/-]+)/", text):
            os.makedirs(os.path.join(self.folder, "etc", name), exist_ok=True)
        etc = os.path.join(self.folder, "etc/syncguard/url")
        known = text
        if os.path.exists(etc):
            with open(etc, encoding="utf-8") as f:
                known += f.read()
        urls, environment = self.stores.for_text(known + os.environ.get("SYNCGUARD_URL", ""))
        wrapper = os.path.join(self.folder, "bin/syncguard")
        if os.path.exists(wrapper):
            os.unlink(wrapper)
        self.program("bin/syncguard", WRAPPER % {
            "python": sys.executable, "stores": urls, "folder": self.folder,
            "command": os.path.join(self.build, "syncguard")})
        lib = os.path.join(self.prefix, "lib")
        environment = dict(
            os.environ, HOME=self.folder, EXAMPLE_RAN=self.ran, TMPDIR=self.folder,
            PATH=os.path.join(self.folder, "bin") + ":" + os.environ["PATH"],
            LD_LIBRARY_PATH=lib, PKG_CONFIG_PATH=os.path.join(lib, "pkgconfig"),
            CMAKE_PREFIX_PATH=self.prefix, **environment)
        for name in ("SYNCGUARD_URL", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            environment.pop(name, None)
        return self.localized(text), environment

    def run(self, text, seconds=60, shell=("sh", "-eu")):
        """Exit code and output of a shell text; None: it did not end in time."""
        text, environment = self.prepare(text)
        process = subprocess.Popen([*shell, "-c", text], cwd=self.folder, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        try:
            out = process.communicate(timeout=seconds)[0]
            return process.returncode, out
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None, process.communicate()[0]


def install(build, folder):
    """The product as a user has it after `make install`."""
    prefix = os.path.join(folder, "prefix")
    subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--component", "Unspecified"],
                   check=True, stdout=subprocess.DEVNULL)
    found = [root for root, _, files in os.walk(prefix) if "libsyncguard.so" in files]
    lib = os.path.join(prefix, "lib")
    if found[0] != lib:
        os.symlink(found[0], lib)
    return prefix


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
