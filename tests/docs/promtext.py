#!/usr/bin/env python3
"""Checks a text in the exposition format of Prometheus, as `promtool check metrics` does.

    promtext.py FILE [--names]     prints every fault (or the names of the families); exit code 1 if
                                   there is one
    promtext.py --self-test        checks that faulty texts are found faulty

Every family has HELP and TYPE before its samples, which stand together; names and labels are well
formed, values escaped, no series comes twice; counters end in _total; times are in seconds; buckets
of a histogram rise, end with +Inf and agree with _count.
"""

import re
import sys

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
UNITS = ("_milliseconds", "_ms", "_us", "_ns", "_minutes", "_hours", "_kilobytes")


class Fault(Exception):
    pass


def labels_of(text):
    """`a="1",b="2"` into a dict."""
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        if not match:
            raise Fault(f"not a label: {text[at:at + 40]}")
        if match.group(1) in labels:
            raise Fault(f"label {match.group(1)} twice")
        labels[match.group(1)] = match.group(2)
        at = match.end()
        if at < len(text):
            if text[at] != ",":
                raise Fault(f"no comma: {text[at:at + 40]}")
            at += 1
    return labels


def sample_of(line):
    match = NAME.match(line)
    if not match:
        raise Fault(f"not a sample: {line[:60]}")
    name, rest = match.group(0), line[match.end():]
    labels = {}
    if rest.startswith("{"):
        # The first } that is in no quoted value.
        end = re.match(r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}', rest)
        if not end:
            raise Fault(f"labels do not end: {line[:60]}")
        labels, rest = labels_of(rest[1:end.end() - 1]), rest[end.end():]
    if not re.fullmatch(r" (?:[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?|NaN|[+-]Inf)", rest):
        raise Fault(f"not a value: {line[:60]}")
    return name, labels, float(rest)


class Family:
    def __init__(self, name, help_text):
        self.name, self.help, self.type = name, help_text, None
        self.samples = []

    def owns(self, name):
        suffixes = ("_bucket", "_sum", "_count") if self.type == "histogram" else ("",)
        return any(name == self.name + suffix for suffix in suffixes)

    def check(self):
        if self.type not in ("counter", "gauge", "histogram"):
            raise Fault(f"{self.name} has no type")
        if not self.help:
            raise Fault(f"{self.name} has no help")
        if not self.samples:
            raise Fault(f"{self.name} has no sample")
        if (self.type == "counter") != self.name.endswith("_total"):
            raise Fault(f"{self.name}: _total is for counters, and for all of them")
        if self.name.endswith(UNITS):
            raise Fault(f"{self.name} is not in a base unit")
        seen = set()
        for name, labels, _ in self.samples:
            series = (name, tuple(sorted(labels.items())))
            if series in seen:
                raise Fault(f"{name} twice with {labels}")
            seen.add(series)
        if self.type == "histogram":
            self.check_histogram()
        if self.type != "gauge" and any(value < 0 for _, _, value in self.samples):
            raise Fault(f"{self.name} is negative")

    def check_histogram(self):
        groups = {}
        for name, labels, value in self.samples:
            rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
            group = groups.setdefault(rest, {"buckets": []})
            if name.endswith("_bucket"):
                group["buckets"].append((labels["le"], value))
            else:
                group[name[len(self.name):]] = value
        for rest, group in groups.items():
            bounds = [float(bound) for bound, _ in group["buckets"]]
            counts = [count for _, count in group["buckets"]]
            if not bounds or group["buckets"][-1][0] != "+Inf":
                raise Fault(f"{self.name}: no +Inf bucket")
            if bounds != sorted(set(bounds)) or counts != sorted(counts):
                raise Fault(f"{self.name}: buckets are not sorted")
            if group.get("_count") != counts[-1] or "_sum" not in group:
                raise Fault(f"{self.name}: _count or _sum does not fit")


def parse(text):
    """The families by name; raises Fault."""
    families, current = {}, None
    if text and not text.endswith("\n"):
        raise Fault("the last line does not end")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help_text = line[7:].partition(" ")
            if name in families:
                raise Fault(f"{name} comes twice")
            if not NAME.fullmatch(name):
                raise Fault(f"not a name: {name}")
            current = families[name] = Family(name, help_text)
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if current is None or current.name != name or current.samples:
                raise Fault(f"TYPE of {name} does not follow its HELP")
            current.type = kind
        else:
            name, labels, value = sample_of(line)
            if current is None or not current.owns(name):
                raise Fault(f"{name} does not belong to the family before it")
            current.samples.append((name, labels, value))
    for family in families.values():
        family.check()
    return families


HEAD = "# HELP a_total text\n# TYPE a_total counter\n"
HISTOGRAM = "# HELP h text\n# TYPE h histogram\n"
GOOD = [HEAD + 'a_total{x="1",y="} \\" \\\\ \\n"} 3\na_total{x="2"} 0.5\n',
        HISTOGRAM + 'h_bucket{le="0.1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 1.5\nh_count 2\n']
BAD = ["a_total 1\n",                                              # no HELP, no TYPE
       "# HELP a_total text\na_total 1\n",                         # no TYPE
       HEAD,                                                       # no sample
       HEAD + "a_total 1",                                         # unfinished line
       HEAD + "a_total\n", HEAD + "a_total 1 2 3\n", HEAD + "a_total x\n", HEAD + "a_total -1\n",
       HEAD + 'a_total{x="1"} 1\na_total{x="1"} 2\n',              # twice
       HEAD + 'a_total{x="1",x="2"} 1\n',
       HEAD + 'a_total{1x="1"} 1\n',
       HEAD + 'a_total{x="a"b"} 1\n',                              # not escaped
       HEAD + 'a_total{x="\\t"} 1\n',
       HEAD + "a_total 1\n" + HEAD + "a_total 1\n",
       HEAD + "a_total 1\nb_total 1\n",
       "# HELP a text\n# TYPE a counter\na 1\n",
       "# HELP a_total text\n# TYPE a_total gauge\na_total 1\n",
       "# HELP a_ms text\n# TYPE a_ms gauge\na_ms 1\n",
       HISTOGRAM + 'h_bucket{le="0.1"} 1\nh_sum 1\nh_count 1\n',   # no +Inf
       HISTOGRAM + 'h_bucket{le="1"} 1\nh_bucket{le="0.1"} 1\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n',
       HISTOGRAM + 'h_bucket{le="0.1"} 3\nh_bucket{le="+Inf"} 2\nh_sum 1\nh_count 2\n',
       HISTOGRAM + 'h_bucket{le="+Inf"} 2\nh_sum 1\nh_count 3\n',
       HISTOGRAM + 'h_bucket{le="+Inf"} 2\nh_count 2\n']


def self_test():
    faults = 0
    for text, good in [(text, True) for text in GOOD] + [(text, False) for text in BAD]:
        try:
            parse(text)
            found = True
        except Fault as fault:
            found = False
            if good:
                print(fault)
        if found != good:
            faults += 1
            print(f"taken for {'good' if found else 'faulty'}:\n{text}")
    print(f"{len(GOOD)} good and {len(BAD)} faulty texts, {faults} misjudged")
    return faults > 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    with open(sys.argv[1], encoding="utf-8", newline="\n") as file:
        text = file.read()
    try:
        families = parse(text)
    except Fault as fault:
        print(f"{sys.argv[1]}: {fault}")
        return 1
    if "--names" in sys.argv:
        print("\n".join(families))
    return 0


if __name__ == "__main__":
    sys.exit(main())
