"""Quantised products at sizes that nobody measured: what the prior chooses, alone and after measuring three, against the best of
all candidates of all sources, measured exhaustively.

    python -m benchmarks.gpu.unseen_products --seconds 80      goes on from the committed file, writes OUT/SUITE.json
    python -m benchmarks.gpu.unseen_products --show            only prints the tables of the committed file

Each kind (8-bit integers, 8-bit floats with scales by rows, 16-bit activations by 4-bit weights) has 300 sizes, always the same:
log-uniform rows, and weights whose sides are log-uniform multiples of 64. Kinds take turns, so a run that ends early has as many
sizes of each. While one size is timed, the machine's cores compile what the next ones try. CUTLASS takes part where its headers
are (`polytile[cutlass]`). Times are kernel µs of one process, in turns.
"""

from __future__ import annotations

import math
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.candidates import Trials, Tried, spread
from benchmarks.gpu.grid import Cells
from benchmarks.gpu.products import Shape
from polytile.dispatch.links.prior import varied
from polytile.dispatch.request import Request
from polytile.report import Table, show
from polytile.report.environment import accelerator

SUITE = "gpu_unseen_products"
KINDS = {
    "int8": Tried("int8", "int8 × int8, scaled", ("int8",)),
    "fp8": Tried("fp8", "fp8, scaled by rows", ("fp8",)),
    "w4a16": Tried("prologue", "int4 weights", ("bf16",)),
}
COUNT = 300
ROWS, SIDE, STEP = (1, 8192), (512, 16384), 64
"""Ranges of M, and of N and K; what N and K are multiples of."""
LARGEST = 1 << 36
"""Multiply-adds of the largest product."""
MEASURED = 3
AHEAD = 4
"""How many sizes before its turn what a size tries is compiled."""
BARS = 1.10, 1.03
"""Geometric means that the prior alone, and the best of MEASURED, should not exceed."""


def shapes(kind: str, count: int = COUNT) -> list[Shape]:
    """The sizes of a kind, always the same."""
    draw = random.Random(f"unseen {kind}")
    found: list[Shape] = []
    while len(found) < count:
        m, n, k = (math.exp(draw.uniform(*map(math.log, limits))) for limits in (ROWS, SIDE, SIDE))
        shape = round(m), round(n / STEP) * STEP, round(k / STEP) * STEP
        if math.prod(shape) <= LARGEST and shape not in found:
            found.append(shape)
    return found


def turns() -> list[tuple[str, Shape]]:
    """All sizes, kinds in turns."""
    drawn = {kind: shapes(kind) for kind in KINDS}
    return [(kind, drawn[kind][number]) for number in range(COUNT) for kind in KINDS]


def run(cells: Cells, deadline: float) -> Iterator[dict[str, Any]]:
    """Adds a cell for each size that is missing, until the clock says so."""
    missing = [(kind, shape) for kind, shape in turns() if not cells.has(kind, KINDS[kind].dtypes[0], shape)]
    trials: dict[str, Trials] = {}
    asked: list[tuple[str, Request]] = []

    def ask(turn: tuple[str, Shape]) -> None:
        kind, shape = turn
        if kind not in trials:
            trials[kind] = Trials(KINDS[kind].dtypes[0], KINDS[kind])
        request = trials[kind].request(shape)
        for candidate in request.candidates:
            candidate.prepare()
        asked.append((kind, request))

    for turn in missing[:AHEAD]:
        ask(turn)
    for place, (kind, shape) in enumerate(missing):
        if time.monotonic() > deadline:
            return
        if place + AHEAD < len(missing):
            ask(missing[place + AHEAD])
        cells.add({"function": kind, "dtype": KINDS[kind].dtypes[0], "shape": list(shape), **measured(trials, *asked.pop(0))})
        yield cells.rows[-1]


def measured(trials: dict[str, Trials], kind: str, request: Request) -> dict[str, Any]:
    """Each candidate's µs and prediction, which of them would be measured, and whose they are."""
    cost = {candidate.name: candidate.cost(request.sizes) for candidate in request.candidates}
    ranked = sorted(request.candidates, key=lambda candidate: cost[candidate.name])
    us = trials[kind].us(request, request.candidates)
    return {
        "us": us, "predicted_us": {name: cost[name] * 1e6 for name in us},
        "three": [c.name for c in varied([c for c in ranked if c.name in us], MEASURED, lambda candidate: candidate.traits)],
        "origin": {candidate.name: candidate.origin for candidate in ranked if candidate.name in us},
    }  # fmt: skip


def regrets(row: dict[str, Any]) -> tuple[float, float]:
    """The time of the candidate that is predicted best, and of the best of those that would be measured, over the best one's."""
    us, predicted = row["us"], row["predicted_us"]
    best = min(us.values())
    return us[min(us, key=lambda name: predicted[name])] / best, min(us[name] for name in row["three"]) / best


def wins(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """How often each source has the fastest candidate."""
    return Counter(row["origin"][min(row["us"], key=lambda name: row["us"][name])] for row in rows)


def report(results: dict[str, Any]) -> None:
    """Prints the tables."""
    body, won, sources = [], [], sorted({origin for row in results["cells"] for origin in row["origin"].values()})
    for kind in KINDS:
        rows = [row for row in results["cells"] if row["function"] == kind and row["us"]]
        if rows:
            alone, after = zip(*map(regrets, rows), strict=True)
            counts = sorted(len(row["us"]) for row in rows)
            body.append((kind, f"{len(rows)} of {COUNT}", counts[len(counts) // 2], spread(alone), spread(after)))
            there = {source: sum(source in row["origin"].values() for row in rows) for source in sources}
            won.append((kind, *(f"{wins(rows)[source]} of {there[source]}" for source in sources)))
    columns = ["kind", "sizes", "candidates, median", "the prior alone", f"best of {MEASURED}"]
    bars = f"bars: geomean {BARS[0]:.2f} and {BARS[1]:.2f}"
    show(Table.from_rows(f"time over that of the best of all candidates, {results['device']} ({bars})", columns, body))
    show(Table.from_rows("how often each source is the fastest, of the sizes at which it takes part", ["kind", *sources], won))


def main() -> None:
    parser = Command(__doc__, SUITE, report, gpu=True)
    parser.add_argument("--seconds", type=float, default=80.0, help="when no new size is begun")
    parser.add_argument("--anew", action="store_true", help="do not go on from the committed file")
    given = parser.parsed()
    committed = record.RESULTS / f"{SUITE}.json"
    deadline, cells = time.monotonic() + given.seconds, Cells(given.out / f"{SUITE}_cells.jsonl")
    if committed.exists() and not given.anew:
        cells.take(committed)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
    try:
        with polytile.options.override(cutlass_configs=99):
            for row in run(cells, deadline):
                print(row["function"], row["shape"], *(f"{regret:.3f}" for regret in regrets(row)), dict(wins([row])), flush=True)
    finally:
        results = {"device": accelerator(), "cells": cells.rows}
        record.write(SUITE, results, given.out)
        report(results)


if __name__ == "__main__":
    main()
