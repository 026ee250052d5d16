#!/usr/bin/env python3
"""The page of every store states what its operations must do, the rules that all stores have in common included
(I-CFG-05), and what cleanup costs and does to tests (I-ISL-08).

    operations.py SOURCE
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402

RULES = {
    "every operation": ["MUST check key, lock id and TTL (InvalidArgument) and the abort object (Aborted)",
                        "a failure is an error"],
    "acquire": ["MUST return the expiry that is stored", "MUST return a fence of 15 digits above every earlier one",
                "above 90000000000000 a warning", "900000000000000", "MUST treat a lock as held", "one attempt"],
    "release": ["MUST", "same rule for expiry", "absent for unknown, expired and released ids", "the counter"],
    "extend": ["MUST do the same checks", "now plus TTL", "MUST return the expiry that is stored", "Never revives"],
    "is_locked": ["only reads", "Cleanup is off by default"],
    "lookup": ["only reads", "MUST compare the id that is stored", "as hashes only", "do not base a change on it"],
    "list": ["live locks only"],
    "cleanup": ["MUST NOT change or delay the result", "2000 ms", "never a counter"],
}
COSTS = ["is_locked", "storage", "tests"]


def rows(text):
    """The rows of all tables: first cell to the texts of the others."""
    found = {}
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 1:
            found.setdefault(cells[0], []).append(" ".join(cells[1:]))
    return found


def lacks(text):
    """What a page lacks."""
    table = rows(text)
    missing = ["%s: %s" % (name, rule) for name, rules in RULES.items() for rule in rules
               if not any(rule in row for row in table.get(name, []))]
    costs = rows(text[text.rfind("## Cleanup"):]) if "## Cleanup" in text else {}
    return missing + ["Cleanup: " + name for name in COSTS if name not in costs]


def main():
    source = sys.argv[1]
    faults = [page + ": " + fault for page in pages.all_pages(source) if page.startswith("docs/backends/")
              for fault in lacks(pages.read(source, page))]
    print("\n".join(faults) or "all pages state the rules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
