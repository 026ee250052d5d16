#!/usr/bin/env python3
"""No link of a page is dead, anchors included, and README.md leads to every page in two clicks.

    links.py SOURCE
    links.py --self-test
"""
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402

CLICKS = 2
# Pages that explain a folder to those who work in it.
INTERNAL = re.compile(r"^tests/")


def target(page, link):
    """The file that a link leads to, relative to the source, and the anchor."""
    name, _, anchor = link.partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
    return file, anchor


def dead(source, page, link):
    """What is wrong with a link, or nothing."""
    file, anchor = target(page, link)
    if file.startswith("..") or not os.path.exists(os.path.join(source, file)):
        return "%s: %s is not there" % (page, link)
    if anchor and file.endswith(".md") and anchor not in pages.anchors(source, file):
        return "%s: %s has no such heading" % (page, link)
    return None


def clicks(source, found):
    """The number of clicks from README.md to each page that can be reached."""
    distance, border = {"README.md": 0}, ["README.md"]
    while border:
        page = border.pop(0)
        for link in found.get(page, []):
            file = target(page, link)[0]
            if os.path.isdir(os.path.join(source, file)):
                file = os.path.join(file, "README.md")
            if file in found and file not in distance:
                distance[file] = distance[page] + 1
                border.append(file)
    return distance


def adr_numbers(source):
    """Decisions are cited by their numbers, so no two have the same."""
    seen = {}
    for file in sorted(os.listdir(os.path.join(source, "docs/adr"))):
        number = file[:4] if re.match(r"\d{4}-", file) else file
        if seen.setdefault(number, file) != file:
            yield "docs/adr: %s and %s have the same number" % (seen[number], file)


def check(source):
    found = {page: [link for link in pages.links(source, page) if not re.match(r"[a-z]+:", link)]
             for page in pages.all_pages(source)}
    faults = [fault for page, links in found.items() for link in links
              for fault in [dead(source, page, link)] if fault]
    distance = clicks(source, found)
    for page in found:
        if not INTERNAL.match(page) and distance.get(page, CLICKS + 1) > CLICKS:
            faults.append("%s: README.md does not lead to it in %d clicks" % (page, CLICKS))
    if os.path.isdir(os.path.join(source, "docs/adr")):
        faults += adr_numbers(source)
    return faults, len(found), sum(len(links) for links in found.values())


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)

        write("README.md", "# A\n[one](docs/one.md) [gone](gone.md) [here](#a) [there](#b) `[x](y)`\n")
        write("docs/one.md", "# One\n[two](two.md#the-two)\n```sh\n[code](nothing)\n```\n")
        write("docs/two.md", "# The `two`\n[three](three.md) [far](../../etc)\n")
        write("docs/three.md", "# Three\n[wrong](two.md#two)\n")
        write("docs/adr/0001-a.md", "")
        write("docs/adr/0001-b.md", "")
        subprocess.run(["git", "init", "-q", folder], check=True)
        faults = check(folder)[0]
        expected = ["README.md: gone.md is not there", "README.md: #b has no such heading",
                    "docs/two.md: ../../etc is not there", "docs/three.md: two.md#two has no such",
                    "docs/three.md: README.md does not lead", "docs/adr/0001-a.md: README.md does",
                    "docs/adr/0001-b.md: README.md does", "docs/adr: 0001-a.md and 0001-b.md"]
        missed = [text for text in expected if not any(f.startswith(text) for f in faults)]
        if missed or len(faults) != len(expected):
            print("expected %r\nfound    %r" % (expected, faults))
            return 1
    return 0


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    faults, page_count, link_count = check(sys.argv[1])
    print("\n".join(faults + ["%d pages, %d links, %d faults" % (page_count, link_count, len(faults))]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
