#!/usr/bin/env python3
"""The guide of telemetry, its rules and the dashboard name only metrics that exist, and all of them.

    metric_names.py SOURCE EXAMPLE COMMAND

EXAMPLE prints the metrics of the library (examples/metrics.c), COMMAND is syncguard. Both texts are
checked as promtext.py does.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import yaml

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import promtext  # noqa: E402

# Labels that Prometheus adds to what it reads.
ADDED = {"job", "instance"}
SELECTOR = re.compile(r"\b(syncguard_\w+)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')

faults = []


def fault(text):
    print(text)
    faults.append(text)


def families_of(example, command):
    library = subprocess.run([example], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.prom")
        subprocess.run([command, "run", "-b", f"sqlite:{folder}/locks.db", "--metrics", path, "key",
                        "--", "true"], check=True)
        with open(path, encoding="utf-8") as file:
            command_text = file.read()
    return promtext.parse(library), promtext.parse(command_text)


def check_table(guide, families):
    """Every metric has one row in a table, with its type and its labels where they are columns."""
    rows = re.findall(r"^\| `(syncguard_\w+)` \|(.*)\|$", guide, re.M)
    names = [name for name, _ in rows]
    for name in sorted(set(names) ^ set(families)):
        fault(f"guide: {name} is in {'the table only' if name in names else 'the code only'}")
    if len(names) != len(set(names)):
        fault("guide: a metric has two rows")
    for name, rest in rows:
        cells = [cell.strip() for cell in rest.split("|")]
        family = families.get(name)
        if family is None or name.startswith("syncguard_run_"):
            continue
        if cells[0] != family.type:
            fault(f"guide: {name} is a {family.type}")
        own = set().union(*(labels for _, labels, _ in family.samples)) - \
            {"backend", "handle", "service", "region", "le"}
        if set(re.findall(r"`(\w+)`", cells[1])) != own:
            fault(f"guide: the labels of {name} are {sorted(own)}")


def check_expression(where, expression, families):
    """Metrics, labels and values of labels exist."""
    used = set()
    for name, selector in SELECTOR.findall(expression):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        family = families.get(name) or families.get(base)
        if family is None or (name == family.name) != (family.type != "histogram"):
            fault(f"{where}: there is no {name}")
            continue
        used.add(family.name)
        labels = {}
        for _, all_labels, _ in family.samples:
            for label, value in all_labels.items():
                labels.setdefault(label, set()).add(value)
        for label, operator, value in MATCHER.findall(selector):
            if label not in labels and label not in ADDED:
                fault(f"{where}: {name} has no label {label}")
            elif label in labels and operator in ("=", "!=") and value not in labels[label]:
                fault(f"{where}: {label} of {name} is never {value}")
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            for label in re.split(r",\s*", group):
                if label not in labels and label not in ADDED:
                    fault(f"{where}: {name} has no label {label}")
    if not used:
        fault(f"{where}: no metric of ours in {expression}")
    return used


def check_rules(guide, families):
    count = 0
    for block in re.findall(r"^```yaml\n(.*?)^```", guide, re.M | re.S):
        for group in yaml.safe_load(block)["groups"]:
            for rule in group["rules"]:
                count += 1
                check_expression(rule["alert"], rule["expr"], families)
                if not rule["labels"]["severity"] or not rule["annotations"]["summary"]:
                    fault(f"{rule['alert']}: no severity or summary")
                for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
                    if f"{label}" not in rule["expr"] and label != "key":
                        fault(f"{rule['alert']}: the expression has no {label}")
    if count == 0:
        fault("guide: there are no rules")


def check_dashboard(path, families):
    with open(path, encoding="utf-8") as file:
        dashboard = json.load(file)
    used, places = set(), []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        for other in places:
            if place["x"] < other["x"] + other["w"] and other["x"] < place["x"] + place["w"] and \
                    place["y"] < other["y"] + other["h"] and other["y"] < place["y"] + place["h"]:
                fault(f"{panel['title']}: lies over another panel")
        places.append(place)
        for target in panel["targets"]:
            used |= check_expression(panel["title"], target["expr"], families)
    for name, _ in SELECTOR.findall(json.dumps(dashboard["templating"])):
        if name not in families:
            fault(f"dashboard: there is no {name}")
    # Metrics that a dashboard need not show.
    hidden = {"syncguard_wait_attempts", "syncguard_run_wait_seconds", "syncguard_run_hold_seconds"}
    for name in sorted(set(families) - used - hidden):
        fault(f"dashboard: {name} is not shown")


def main():
    source, example, command = sys.argv[1:4]
    library, run = families_of(example, command)
    families = {**library, **run}
    with open(os.path.join(source, "docs/guides/telemetry.md"), encoding="utf-8") as file:
        guide = file.read()
    check_table(guide, families)
    check_rules(guide, families)
    check_dashboard(os.path.join(source, "examples/dashboard.json"), families)
    print(f"{len(families)} metrics, {len(faults)} faults")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
