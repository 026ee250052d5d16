#!/usr/bin/env python3
"""Turns the comments of a header into those of Doxygen: for scripts/api-docs.sh.

The headers use plain comments. A comment right above a declaration belongs to it, and to those that
follow without an empty line; one behind a member or constant belongs to that; the first comment of a
file describes the file.

    api-filter.py HEADER
"""
import re
import sys


def escaped(text):
    """Nothing in the text is a command or markup."""
    return re.sub(r"([@\\<>#%])", r"\\\1", text)


def documented(text):
    """A comment as one of Doxygen, with its examples as code."""
    lines = [re.sub(r"^\s*\*? ?", "", line) for line in text[2:-2].split("\n")]
    out, code = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not code:
            out.append("@code{.c}")
        if code and not indented and line.strip():
            out.append("@endcode")
        code = indented or (code and not line.strip())
        out.append(line if code else escaped(line))
    if code:
        out.append("@endcode")
    return "\n".join(out).strip()


def ends(line):
    """A declaration, constant or member ends in this line."""
    return bool(re.search(r"[;,{]\s*(/\*.*\*/)?\s*$", line))


class Filter:
    def __init__(self):
        self.out = []
        self.group = None    # comment of the declarations up to the next empty line
        self.member = None   # the same inside braces
        self.depth = 0
        self.inside = False  # a declaration has begun and not ended

    def above(self, text):
        self.inside = False
        if self.depth:
            self.member = documented(text)
        else:
            self.group = documented(text)

    def comment_of(self, line):
        """What is known about the declaration that begins in this line, and the line without it."""
        name = re.match(r"#define (\w+_INIT)\b", line)
        behind = re.search(r"\s*/\*(.*?)\*/\s*$", line)
        if behind and (line.startswith(("#define", "typedef")) or "{" in line[:behind.start()]):
            return escaped(behind.group(1).strip()), line[:behind.start()]
        if name:
            return "The defaults, for a definition.", line
        return (self.member if self.depth else self.group), line

    def code(self, line):
        """A line of code, perhaps with a comment behind it."""
        if not line.strip():
            self.group = self.member = None
            self.inside = False
            self.out.append(line)
            return
        if line.startswith("#") and not line.startswith("#define"):
            self.out.append(line)
            return
        if not self.inside and not line.lstrip().startswith("}"):
            comment, line = self.comment_of(line)
            behind = re.search(r"/\*(.*?)\*/\s*$", line)
            if behind:
                line = line[:behind.start()] + "/**< %s */" % escaped(behind.group(1).strip())
            elif comment:
                self.out.append("/** %s */" % comment)
        continued = line.rstrip().endswith("\\")
        self.inside = continued or not (ends(line) or line.startswith("#define"))
        if not line.startswith("#") and not continued and 'extern "C"' not in line:
            self.depth = max(0, self.depth + line.count("{") - line.count("}"))
            if self.depth == 0:
                self.member = None
        self.out.append(line)

    def run(self, text):
        first = True
        pieces = re.split(r"(^[ \t]*/\*.*?\*/[ \t]*\n)", text, flags=re.S | re.M)
        for piece in pieces:
            if re.match(r"[ \t]*/\*", piece):
                if first:
                    self.out.append("/** @file\n%s */" % documented(piece.strip()))
                    first = False
                else:
                    self.above(piece.strip())
                continue
            for line in piece.split("\n")[:-1] if piece.endswith("\n") else piece.split("\n"):
                self.code(line)
        return "\n".join(self.out) + "\n"


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        sys.stdout.write(Filter().run(f.read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
