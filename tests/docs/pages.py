"""The Markdown pages of the project, their links, headings and fenced blocks.

Comments right before a block tell the test about it; a reader of the rendered page does not see them:

    <!-- not run: REASON -->     it is not run (a shell block is still parsed); the test lists it
    <!-- file: NAME -->          it is written to this file first, for the blocks that follow
    <!-- before: COMMAND -->     run before it, for what the text takes for granted
    <!-- exit: N -->             how a shell block ends; 0 if nothing is said
"""

import os
import re
import subprocess

FENCE = re.compile(r"^( *)```(\S*)\s*$")
NOTE = re.compile(r"^ *<!-- (not run|file|before|exit): (.*?) -->\s*$")


class Block:
    def __init__(self, page, line, language, notes):
        self.page, self.line, self.language, self.notes = page, line, language, notes
        self.text = ""

    def __str__(self):
        return "%s:%d (%s)" % (self.page, self.line, self.language or "no language")


def all_pages(source):
    """Paths relative to source."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            cwd=source, check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted(path for path in listed if path and os.path.exists(os.path.join(source, path)))


def read(source, page):
    with open(os.path.join(source, page), encoding="utf-8") as f:
        return f.read()


def blocks(source, page):
    found, block, notes, indent = [], None, {}, 0
    for number, line in enumerate(read(source, page).split("\n"), 1):
        fence = FENCE.match(line)
        note = NOTE.match(line)
        if block is not None:
            if fence and fence.group(2) == "":
                found.append(block)
                block = None
            else:
                block.text += line[min(indent, len(line) - len(line.lstrip())):] + "\n"
        elif fence:
            indent = len(fence.group(1))
            block = Block(page, number, fence.group(2), notes)
            notes = {}
        elif note:
            notes[note.group(1)] = note.group(2)
        elif line.strip():
            notes = {}
    if block is not None:
        raise ValueError("%s: the block of line %d has no end" % (page, block.line))
    return found


def manual_blocks(source, page):
    """The literal blocks and .Dl lines of a man page's examples, as a reader sees them."""
    text = subprocess.run(["mandoc", "-Tmarkdown", os.path.join(source, page)], check=True,
                          capture_output=True, text=True).stdout
    text = "".join(re.findall(r"^# EXAMPLES\n(.*?)(?=^# )", text, re.M | re.S))
    found = []
    for number, block in enumerate(re.findall(r"(?:^\t.*\n)+", text, re.M), 1):
        found.append(Block(page, number, "sh", {}))
        found[-1].text = re.sub(r"^\t", "", block, flags=re.M)
    return found


def without_code(text):
    """Links and headings in code are none."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def links(source, page):
    return re.findall(r"\]\(([^)\s]+)\)", without_code(read(source, page)))


def slug(heading):
    """The anchor that GitHub makes of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    text = re.sub(r"[`*]", "", text)
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(source, page):
    text = re.sub(r"^ *```.*?^ *```", "", read(source, page), flags=re.S | re.M)
    seen = {}
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        name = slug(heading)
        count = seen.get(name, 0)
        seen[name] = count + 1
        found.add(name if count == 0 else "%s-%d" % (name, count))
    return found
