#!/bin/sh
# Keeps the documents true: man pages are well formed, links lead somewhere, the README's program
# compiles, every command has its page.
#
#     check-docs.sh BUILD
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
faults=0
complain() {
    echo "$*" >&2
    faults=$((faults + 1))
}

# Man pages.
for page in docs/man/*.[1-8]; do
    [ -e "$page" ] || continue
    # References between our own pages cannot be resolved before they are installed.
    lint=$(mandoc -T lint -W warning "$page" 2>&1 | grep -v 'referenced manual not found' || true)
    [ -z "$lint" ] || complain "$lint"
done
if [ -x "$build/syncguard" ] && [ -d docs/man ]; then
    for source in src/cli/cmd_*.c; do
        [ -e "$source" ] || continue
        name=$(basename "$source" .c)
        name=${name#cmd_}
        [ -e "docs/man/syncguard-$name.1" ] || complain "no man page docs/man/syncguard-$name.1"
        "$build/syncguard" "$name" --help >/dev/null || complain "syncguard $name --help fails"
    done
fi

# Links between Markdown files, and their headings.
python3 - <<'END' || faults=$((faults + 1))
import os
import re
import subprocess
import sys


def slug(heading):
    text = re.sub(r"[`*_]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def headings(path):
    text = without_code(open(path, encoding="utf-8").read())
    return {slug(h) for h in re.findall(r"^#+ (.*)$", text, re.M)}


bad = 0
files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                       check=True, capture_output=True, text=True).stdout.split()
for path in files:
    text = re.sub(r"`[^`\n]*`", "", without_code(open(path, encoding="utf-8").read()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not os.path.exists(file):
            print(f"{path}: link to {target}, which is not there")
            bad += 1
        elif anchor and file.endswith(".md") and anchor not in headings(file):
            print(f"{path}: link to {target}, which has no such heading")
            bad += 1
numbers = {}
for file in sorted(os.listdir("docs/adr")):
    number = re.match(r"(\d{4})-", file)
    if number and numbers.setdefault(number.group(1), file) != file:
        print(f"docs/adr: {number.group(1)} is used by {numbers[number.group(1)]} and {file}")
        bad += 1
sys.exit(bad > 0)
END

# Each C block of the README compiles, and links if it is a program.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v out="$work" '
    /^```c$/ { file = out "/block" ++n ".c"; next }
    /^```$/ { file = ""; next }
    file { print > file }' README.md
for block in "$work"/*.c; do
    [ -e "$block" ] || { complain "README.md has no C block"; break; }
    set -- -L"$build" -lsyncguard
    grep -q '^int main' "$block" || set -- -c
    cc -std=c11 -Wall -Wextra -Werror -Iinclude "$block" -o "$work/program" "$@" ||
        complain "README.md: $(basename "$block" .c) does not compile"
done

[ "$faults" = 0 ] || { echo "check-docs: $faults faults" >&2; exit 1; }
