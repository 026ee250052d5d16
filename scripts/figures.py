#!/usr/bin/env python3
"""Draws the pictures of the README and writes its tables of figures, from measured data: a hand-over and
speed from bench/results.jsonl, the fault matrix from the tables of docs/guarantees.md.

    figures.py            writes docs/pictures/*.svg and the tables between <!-- figures --> comments
    figures.py --check    fails if they differ from the data
"""
import json
import math
import os
import re
import sys
from xml.sax.saxutils import escape

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS, OTHERS, GRAY, INK = "#2a6f97", "#b08968", "#8d99a6", "#1d2733"
COLOURS = {"kept": "#52a675", "as documented": "#e9b44c"}


class Picture:
    def __init__(self, width, height, title):
        self.lines = [
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' "
            "font-family='sans-serif' font-size='13' fill='%s' role='img'>" %
            (width, height, width, height, INK),
            "<title>%s</title>" % escape(title),
            "<rect width='100%' height='100%' fill='#ffffff'/>"]

    def text(self, x, y, text, **style):
        self.lines.append("<text x='%.1f' y='%.1f'%s>%s</text>" % (x, y, attributes(style), escape(text)))

    def box(self, x, y, width, height, colour, hint="", **style):
        inside = "<title>%s</title>" % escape(hint) if hint else ""
        self.lines.append("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'%s>%s</rect>" %
                          (x, y, width, height, colour, attributes(style), inside))

    def line(self, path, **style):
        self.lines.append("<path d='%s' fill='none'%s/>" % (path, attributes(style)))

    def done(self):
        return "\n".join(self.lines + ["</svg>", ""])


def attributes(style):
    return "".join(" %s='%s'" % (name.replace("_", "-"), value) for name, value in style.items())


def duration(us):
    if us < 1000:
        return "%.0f µs" % us
    return "%.2g ms" % (us / 1000) if us < 100000 else "%.0f ms" % (us / 1000)


def measured():
    with open(os.path.join(TOP, "bench/results.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def one(store, figure):
    """The value of a figure."""
    return next(f["measured"] for f in measured() if (f["store"], f["figure"]) == (store, figure))


def peers(figure):
    """The same figure of other libraries, by name."""
    return {f["against"]: f["limit"] for f in measured() if (f["store"], f["figure"]) == ("peers", figure)}


def handover_figures():
    """Name, median in microseconds, and whether it is ours."""
    names = (("redis", "Redis"), ("sqlite", "SQLite"), ("postgres", "PostgreSQL"),
             ("firestore", "Firestore (it polls)"))
    rows = [("SyncGuard, " + title, one(name, "hand-over, 2 processes, p50"), True)
            for name, title in names]
    return rows + sorted(((name + ", Redis", us, False) for name, us in
                          peers("hand-over, p50").items()), key=lambda row: row[1])


def draw_timeline(picture, top):
    """What is measured: from the release until the next process has the lock."""
    left, release, granted, right = 110, 420, 520, 780
    for row, name in enumerate(("process A", "process B")):
        picture.text(16, top + 21 + 46 * row, name)
    picture.box(left, top, release - left, 30, OURS)
    picture.text(left + 10, top + 20, "holds the lock, fence 7", fill="#ffffff")
    picture.box(left + 60, top + 46, granted - left - 60, 30, "#dfe5ea")
    picture.text(left + 70, top + 66, "sleeps until it is notified")
    picture.box(granted, top + 46, right - granted, 30, OURS)
    picture.text(granted + 10, top + 66, "holds the lock, fence 8", fill="#ffffff")
    for x in (release, granted):
        picture.line("M%d %dV%d" % (x, top - 8, top + 106), stroke=INK, stroke_dasharray="3 3")
    picture.line("M%d %dH%d" % (release, top + 100, granted), stroke=INK, stroke_width=2)
    picture.text(release - 8, top + 105, "release", text_anchor="end")
    picture.text(granted + 8, top + 105, "acquired: the time below")


def handover():
    rows = handover_figures()
    top, bar, left, right = 240, 27, 230, 800
    bottom = top + bar * len(rows) + 4
    picture = Picture(880, bottom + 34, "Hand-over of a lock")
    picture.text(16, 30, "A hand-over: one process releases, and a waiting one gets the lock",
                 font_size=17, font_weight="bold")
    draw_timeline(picture, 60)
    picture.text(16, top - 26, "Median from release to acquired, two processes (bench/RESULTS.md); "
                 "each grid line is ten times the one before", fill="#55606b")

    def place(us):
        return left + (right - left) * (math.log10(us) - 2) / (math.log10(200000) - 2)

    for us in (100, 1000, 10000, 100000):
        picture.line("M%.1f %dV%d" % (place(us), top - 8, bottom), stroke="#d5dbe1")
        picture.text(place(us), bottom + 17, duration(us), text_anchor="middle", fill="#55606b")
    for number, (name, us, ours) in enumerate(rows):
        y = top + bar * number
        picture.text(left - 8, y + 15, name, text_anchor="end")
        picture.box(left, y, place(us) - left, bar - 7, OURS if ours else OTHERS)
        picture.text(place(us) + 6, y + 15, duration(us), font_weight="bold" if ours else "normal")
    return picture.done()


def tables(text):
    """Each table as a list of rows, a row as a dictionary by column."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = [[word.strip() for word in line.strip().strip("|").split("|")]
                for line in table.strip().split("\n")]
        yield [dict(zip(rows[0], row)) for row in rows[2:]]


def matrix_cells():
    """(store, fault): result, and the totals."""
    with open(os.path.join(TOP, "docs/guarantees.md"), encoding="utf-8") as f:
        text = f.read().split("<!-- figures -->")[1].split("<!-- end of figures -->")[0]
    cells, total = {}, None
    for table in tables(text):
        if "result" in table[0]:
            cells = {(row["store"], row["fault"]): re.sub(r" \[\d+\]", "", row["result"])
                     for row in table}
        elif "histories" in table[0]:
            total = next(row for row in table if row["store"] == "all")
    return cells, total


def in_order(names):
    return list(dict.fromkeys(names))


def draw_legend(picture, x, y, cells):
    for result in in_order(cells.values()):
        picture.box(x, y - 12, 15, 15, COLOURS.get(result, "#c0392b"))
        picture.text(x + 21, y, "%s: %d" % (result, list(cells.values()).count(result)))
        x += 60 + 8 * len(result)
    picture.box(x, y - 12, 15, 15, "#eef1f4")
    picture.text(x + 21, y, "not in the matrix")


def fault_matrix():
    cells, total = matrix_cells()
    stores, faults = in_order(s for s, _ in cells), in_order(f for _, f in cells)
    size, left, top = 23, 190, 226
    width, bottom = max(left + size * len(faults) + 90, 860), top + size * len(stores)
    picture = Picture(width, bottom + 64, "Fault matrix")
    picture.text(16, 30, "Guarantees under faults: each square is a store, a fault and a checked history",
                 font_size=17, font_weight="bold")
    picture.text(16, 52, "%s histories, %s operations, %s injected faults "
                 "(docs/guarantees.md)" % (total["histories"], total["operations"], total["faults"]), fill="#55606b")
    for column, fault in enumerate(faults):
        x, y = left + size * column + 15, top - 8
        picture.text(x, y, fault, transform="rotate(-55 %.1f %.1f)" % (x, y), font_size=12)
    for row, store in enumerate(stores):
        y = top + size * row
        picture.text(left - 10, y + 15, store, text_anchor="end", font_size=12)
        for column, fault in enumerate(faults):
            result = cells.get((store, fault))
            colour = "#eef1f4" if result is None else COLOURS.get(result, "#c0392b")
            picture.box(left + size * column, y, size - 3, size - 3, colour,
                        "%s, %s: %s" % (store, fault, result) if result else "")
    draw_legend(picture, left, bottom + 22, cells)
    picture.text(left, bottom + 46, "As documented: the store itself lost data (no persistence, a file moved away, "
                 "asynchronous failover), as its page says.", fill="#55606b")
    return picture.done()


def rounded(value):
    return "{:,.0f}".format(value)


def readme_table():
    """The best figures, as they were measured."""
    handovers = ", ".join("%s on %s" % (duration(one(name, "hand-over, 2 processes, p50")), title)
                          for name, title in (("redis", "Redis"), ("sqlite", "SQLite"),
                                              ("postgres", "PostgreSQL")))
    others = ", ".join("%s (%s)" % (duration(us), name) for name, us in
                       sorted(peers("hand-over, p50").items(), key=lambda item: item[1]))
    rate = one("peers", "pairs/s, 64 workers")
    times = ", ".join("%.1f times %s" % (rate / other, name)
                      for name, other in peers("pairs/s, 64 workers").items())
    held = "100000 locks held"
    late = max(f["measured"] for f in measured() if "hang" in f["figure"] and "worst" in f["figure"])
    crashes = [f["measured"] for f in measured() if f["figure"].startswith("take-over after a crash")]
    total = matrix_cells()[1]
    return [
        ("from a release until a waiting process has the lock, median", handovers),
        ("the same with other libraries, on the same Redis", others),
        ("acquire and release, 64 workers on one Redis",
         "%s pairs per second: %s" % (rounded(rate), times)),
        ("tries per release while 1,000 threads wait for one key",
         "%.1f" % one("redis", "1,000 waiters, tries per release")),
        ("100,000 locks held and renewed on Redis for three minutes",
         "%.0f lost, %.0f %% of one core" %
         (one("redis", held + " for 180 s, lost"), one("redis", held + ", share of one core"))),
        ("slowest call while a server hangs", "returned %.1f ms after its deadline" % late),
        ("after the holder has crashed, a waiter gets the lock",
         "%.1f to %.1f ms after the lock has ended (TTL plus one second)" % (min(crashes), max(crashes))),
        ("tests under [faults](docs/guarantees.md)",
         "%s recorded runs, %s operations, %s injected faults" %
         (total["histories"], total["operations"], total["faults"]))]


def peers_table():
    names = ("redis-semaphore", "redlock", "redis-py")
    rows = []
    for title, figure, show in (("acquire and release, median", "pair, p50", duration),
                                ("pairs per second, 64 workers", "pairs/s, 64 workers", rounded),
                                ("hand-over to a waiter, median", "hand-over, p50", duration)):
        others = peers(figure)
        rows.append((title, show(one("peers", figure)), *(show(others[name]) for name in names)))
    return [("", "SyncGuard", *names), ("---", *(["---:"] * 4)), *rows]


def with_table(page, rows):
    """The text of a page with these rows between its marks."""
    with open(os.path.join(TOP, page), encoding="utf-8") as f:
        text = f.read()
    table = "\n".join(("| " + " | ".join(row) + " |").replace("|  |", "| |") for row in rows)
    return re.sub(r"(<!-- figures -->\n).*?(\n<!-- end of figures -->)",
                  lambda match: match.group(1) + "\n" + table + "\n" + match.group(2), text, flags=re.S)


def main():
    stale = []
    head = [("measured ([all results](bench/RESULTS.md))", ""), ("---", "---")]
    for path, text in (("docs/pictures/hand-over.svg", handover()),
                       ("docs/pictures/fault-matrix.svg", fault_matrix()),
                       ("README.md", with_table("README.md", head + readme_table())),
                       ("docs/guides/from-redlock.md",
                        with_table("docs/guides/from-redlock.md", peers_table()))):
        file = os.path.join(TOP, path)
        if "--check" not in sys.argv:
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as f:
                f.write(text)
        elif not os.path.exists(file) or open(file, encoding="utf-8").read() != text:
            stale.append(path)
    if stale:
        print("not those of the data: %s; run scripts/figures.py" % ", ".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
