"""`python -m benchmarks.gpu.revisions OLDER [--cells loops products]`: kernel times of two revisions, cell by cell in turns.

OLDER is a folder that is named by its revision and has its files, as `git archive REV src benchmarks | tar -x -C OLDER` leaves
them; the newer revision is the one that this module belongs to. Each has a process and caches of its own, in which polytile's
kernels are timed beside eager's. A cell's ratio is (older polytile / older eager) / (newer polytile / newer eager): above 1 the
newer revision is faster. Cells below 0.985 are measured up to four times more, in both orders, and the median of the ratios
counts. This removes noise on one side only, so the tables have the geometric mean of the first ratios too.

Cells are those that the older revision defines. Of each kind as many are measured as fit into `--seconds`; a run of a kind
replaces that kind in OUT/gpu_revisions.json.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import ROOT, Entrant
from benchmarks.environment import revision
from benchmarks.gpu import products
from benchmarks.gpu.revision_side import KINDS
from benchmarks.timing import geomean
from polytile.report import Column, Table, show
from polytile.report.tables import ratio as two_digits
from polytile.store import words

SIDES = ("older", "newer")
LEAST = 0.97
"""A ratio below which a cell counts as slower."""
AGAIN, TURNS = 0.985, 4
"""Cells below this ratio are measured again, so many times at most."""
AHEAD, FIRST = 0.3, 0.85
"""Shares of the seconds: for compiling ahead, and until no further cell is begun."""
RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
"""Runs a file with the modules of another tree: a file that Python is given itself would have its own folder's."""

Row = dict[str, Any]
"""A cell with what was found: {"function", "dtype", "shape", "pairs", "chosen"}, of products "part", and "error" if no pair could
be measured."""
Pair = Mapping[str, Mapping[str, float]]
"""Kernel µs, {side: {"eager", "polytile"}}."""


class Side(Entrant):
    """The process of a revision, which answers for the tree at `root` (`revision_side.py`)."""

    def __init__(self, root: Path, kind: str) -> None:
        self._start([sys.executable, "-c", RUN, str(ROOT / "benchmarks" / "gpu" / "revision_side.py"), kind], root)


def ratio(pair: Pair) -> float:
    """How many times as fast the newer revision is, each beside its own eager."""
    older, newer = (pair[side]["polytile"] / pair[side]["eager"] for side in SIDES)
    return older / newer


def ratio_of(row: Row) -> float:
    return statistics.median(map(ratio, row["pairs"]))


def again(rows: Sequence[Row]) -> list[Row]:
    """The cells to be measured again, slowest first."""
    return sorted((row for row in rows if row["pairs"] and ratio_of(row) < AGAIN), key=ratio_of)


def summary(rows: Sequence[Row]) -> tuple[int, int, float | None, float | None, float | None, int]:
    """Of these cells: how many were measured, how many of them again; the geometric means of the first ratios and of those that
    count, the least of these, and how many are below LEAST."""
    timed = [row for row in rows if row["pairs"]]
    repeated = sum(len(row["pairs"]) > 1 for row in timed)
    if not timed:
        return 0, 0, None, None, None, 0
    ratios = [ratio_of(row) for row in timed]
    first = geomean([ratio(row["pairs"][0]) for row in timed])
    return len(timed), repeated, first, geomean(ratios), min(ratios), sum(each < LEAST for each in ratios)


def compare(older: Path, kind: str, dtypes: Sequence[str], step: int, seconds: float) -> Iterator[tuple[list[Row], int]]:
    """Measures cells of a kind and yields, from time to time and at the end, what has been found, and how many cells are
    missing. Raises RuntimeError if a side cannot say or prepare its cells."""
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        sides = {side: stack.enter_context(Side(root, kind)) for side, root in zip(SIDES, (older, ROOT), strict=True)}
        cells = sides["older"].ask("cells", dtypes, step)
        if not cells:
            yield [], 0
            return
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda side: side.ask("prepare", cells, AHEAD * seconds), sides.values()))
        rows: list[Row] = []
        for number, cell in enumerate(cells):
            if time.monotonic() > until - (1 - FIRST) * seconds or any(side.ended for side in sides.values()):
                break
            rows.append(_measured(sides, cell, number % 2))
            print(line(rows[-1]), flush=True)
            if number % 40 == 39:
                yield rows, len(cells) - len(rows)
        for turn in range(TURNS):
            yield rows, len(cells) - len(rows)
            for row in again(rows):
                if time.monotonic() < until:
                    cell = {name: row[name] for name in ("part", "function", "dtype", "shape") if name in row}
                    row["pairs"] += _measured(sides, cell, turn % 2)["pairs"]
        yield rows, len(cells) - len(rows)


def _measured(sides: Mapping[str, Entrant], cell: Mapping[str, Any], first: int) -> Row:
    """The cell, with one pair unless a side cannot measure it; side number `first` begins."""
    found: dict[str, Any] = {}
    try:
        for side in SIDES[first], SIDES[1 - first]:
            found[side] = sides[side].ask("measure", cell)
            if len(found[side]["us"]) < 2:
                raise RuntimeError(f"{side}: a call cannot be recorded")
    except RuntimeError as error:
        return {**cell, "pairs": [], "chosen": {}, "error": str(error)[:500]}
    pair, chosen = ({side: found[side][what] for side in SIDES} for what in ("us", "chosen"))
    return {**cell, "pairs": [pair], "chosen": chosen}


# what is shown -----------------------------------------------------------------------------------------------------------


def line(row: Row) -> str:
    return f"{name_of(row)}: {row['error'] if 'error' in row else f'{ratio_of(row):.3f}'}"


def name_of(row: Row) -> str:
    return f"{group_of(row)} {'×'.join(map(str, row['shape']))}"


def group_of(row: Row) -> str:
    part = f"{row['part']}: " if "part" in row else ""
    return f"{part}{row['function']} {row['dtype']}"


def choice(said: Sequence[str]) -> str:
    """The candidates of decisions, in today's words: "sum_c7 at {'n0': 4}: plain x=4 (measured)" is "pointwise x=4"."""
    names = (words.candidate(text.rsplit("}: ", 1)[-1].rsplit(" (", 1)[0]) for text in said)
    return "; ".join(dict.fromkeys(names)) or "as in a regime met before"


def report(results: Mapping[str, Any]) -> None:
    """A table of each kind, then the cells that are slower than AGAIN."""
    three = "{:.3f}".format
    columns = [
        Column("function", align="left"), Column("cells"), Column("measured again"), Column("geomean of first ratios", three),
        Column("geomean", three), Column("least", three), Column(f"below {LEAST}"),
    ]  # fmt: skip
    for kind, run in results.items():
        groups: dict[str, list[Row]] = {}
        for row in run["cells"]:
            groups.setdefault(group_of(row), []).append(row)
        body = [(name, *summary(rows)) for name, rows in {**groups, "all": run["cells"]}.items()]
        missing = [f"{run['missing']} cells were not reached."] if run["missing"] else []
        notes = [f"{run['older']} and {run['newer']}, {run['date']} UTC, {run['device']}.", run.get("made", ""), *missing]
        title = f"{kind}: how many times as fast the newer revision's kernels are"
        show(Table.from_rows(title, columns, body, [" ".join(filter(None, notes))]))
    _show_slow([row for run in results.values() for row in again(run["cells"])])
    for run in results.values():
        for row in run["cells"]:
            if "error" in row:
                print(line(row))


def _show_slow(rows: Sequence[Row]) -> None:
    times = [(who, side) for who in ("polytile", "eager") for side in SIDES]
    columns = [
        Column("cell", align="left"), Column("ratio", "{:.3f}".format),
        *(Column(f"{who}, {side}", two_digits) for who, side in times),
        *(Column(f"chosen, {side}", align="left") for side in SIDES),
    ]  # fmt: skip
    body = [
        (
            name_of(row), ratio_of(row),
            *(statistics.median(pair[side][who] for pair in row["pairs"]) for who, side in times),
            *(choice(row["chosen"][side]) for side in SIDES),
        )
        for row in rows
    ]  # fmt: skip
    if body:
        show(Table.from_rows(f"cells below {AGAIN}: medians of kernel times in µs", columns, body))


def main() -> None:
    parser = Command(__doc__, "gpu_revisions", report, gpu=True)
    parser.add_argument("older", nargs="?", type=Path, metavar="OLDER", help="a folder with the older revision's files")
    parser.add_argument("--cells", nargs="+", choices=list(KINDS), default=list(KINDS), help="kinds of cells")
    parser.add_argument("--dtypes", nargs="+", choices=list(products.DTYPES), default=["bf16"])
    parser.add_argument("--step", type=int, default=512, help="how far apart squares' sizes and a language model's rows are")
    parser.add_argument("--seconds", type=float, default=440, help="for each kind")
    given = parser.parsed()
    if given.older is None or not (given.older / "benchmarks").is_dir():
        parser.error("OLDER is to be a folder with src and benchmarks of an older revision")
    run = {
        "older": given.older.resolve().name, "newer": revision() or "these files",
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "device": torch.cuda.get_device_name(), "step": given.step,
    }  # fmt: skip
    for kind in given.cells:
        for rows, missing in compare(given.older.resolve(), kind, given.dtypes, given.step, given.seconds):
            record.add("gpu_revisions", kind, {**run, "missing": missing, "cells": rows}, given.out)
    report(record.read("gpu_revisions", given.out))


if __name__ == "__main__":
    main()
