"""`python -m benchmarks.gpu.loops [--functions column_sum] [--dtypes bf16 fp32] [--at 64x131072] [--seconds 110]`: every
candidate of loops that might be near the best, at shapes of the grid and at random ones; what the prior's constants are judged
by.

`--judge` needs no GPU: it says for the cells of a result file, or the unseen shapes of gpu.json, what today's prior would choose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import copied
from benchmarks.gpu import candidates, unseen
from benchmarks.gpu.functions import BY_NAME, DTYPES, SHAPES, TRACED, Function, Shape, shape_of
from benchmarks.gpu.grid import Cells
from benchmarks.timing import geomean
from polytile.candidates.candidate import Candidate
from polytile.dispatch.links.prior import CLEAR_LOSER, varied
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.request import Request
from polytile.report import Table, show
from polytile.store import words

NEAR = 2.0
"""Candidates that are predicted to take so many times as long as the best, or more, are not measured."""
AHEAD = 3
"""Cells whose candidates are compiled while another is measured."""
SHORTLIST = 6
SMALL: Shape = (48, 80)
"""The traced shape without a GPU."""


class Kernel:
    """The loop of a function in one type, compiled once: its candidates at any shape. `small`: without a GPU, whose candidates
    it has all the same; `within`: see NEAR."""

    def __init__(self, function: Function, dtype: str, small: bool = False, within: float = NEAR) -> None:
        self.within = within
        traced = SMALL if small else TRACED
        torch._dynamo.reset()
        polytile.reset()
        options: dict[str, Any] = {"tune": "off", "persist": False, "interpret": small}
        call = torch.compile(copied(function.run, "loops"), backend="polytile", dynamic=True, options=options)
        call(*(on_the_host(function, dtype) if small else function.make(traced, DTYPES[dtype])))
        made = [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]
        self.kernel: MultiKernel = max(made, key=lambda kernel: len(kernel.candidates))
        sizes = self.kernel.spec.sizes(self.kernel.decisions[-1].ints)
        factors = {
            math.prod(traced[place] for place in places) // divisor: (places, divisor)
            for divisor in (2, 1)  # a gated function computes half of the columns
            for places in ((0,), (1,), (0, 1))
        }
        self.places = {name: factors[size] for name, size in sizes.items()}

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        return {
            name: math.prod(shape[place] for place in places) // divisor
            for name, (places, divisor) in self.places.items()
        }

    def request(self, shape: Shape) -> Request:
        """What the selector would be asked; the near candidates start to be compiled."""
        spec = self.kernel.spec
        assert spec.make_args is not None
        args = tuple(spec.make_args(self.sizes(shape)))
        request = self.kernel.request(self.kernel.dispatcher.key_of(*args), spec.ints_of(args), args)
        for candidate in self.near(request):
            candidate.prepare()
        return request

    def us(self, request: Request) -> dict[str, float]:
        """Kernel µs of the near candidates."""
        return candidates.kernel_us(request, self.near(request))

    def near(self, request: Request) -> list[Any]:
        """The generated candidates that might be near the best."""
        able = [candidate for candidate in request.candidates if candidate.origin == "triton"]
        least = min(candidate.cost(request.sizes) for candidate in able)
        return [candidate for candidate in able if candidate.cost(request.sizes) <= self.within * least]


def on_the_host(function: Function, dtype: str) -> tuple[Any, ...]:
    """Inputs of the small shape in the host's memory."""
    with FakeTensorMode():
        made = function.make(SMALL, DTYPES[dtype])
    return tuple(torch.zeros(fake.shape, dtype=fake.dtype) for fake in made)


def shapes(count: int) -> list[Shape]:
    """Those of the grid with several rows, and as many random ones, in turns."""
    grid = [shape for shape in SHAPES if shape[0] > 1]
    drawn = unseen.shapes(count)
    mixed = [shape for pair in zip(grid, drawn, strict=False) for shape in pair]
    return [*mixed, *grid[len(drawn) :], *drawn[len(grid) :]][:count]


def run(
    functions: Sequence[Function], dtypes: Sequence[str], wanted: Sequence[Shape], cells: Cells, deadline: float,
    within: float = NEAR,
) -> None:  # fmt: skip
    """A cell a function, type and shape, until time is over; functions and types share it."""
    each = [(function, dtype) for function in functions for dtype in dtypes]
    for number, (function, dtype) in enumerate(each):
        until = time.monotonic() + (deadline - time.monotonic()) / (len(each) - number)
        missing = [shape for shape in wanted if not cells.has(function.name, dtype, shape)]
        kernel = Kernel(function, dtype, within=within) if missing else None
        asked: list[tuple[Shape, Request]] = []
        for shape in (*missing, *[None] * AHEAD):
            if kernel is None or time.monotonic() > until:
                break
            if shape is not None:
                asked.append((shape, kernel.request(shape)))
            if asked and (len(asked) > AHEAD or shape is None):
                cells.add(_cell(function, dtype, kernel, *asked.pop(0)))


def _cell(function: Function, dtype: str, kernel: Kernel, shape: Shape, request: Request) -> dict[str, Any]:
    predicted = {c.name: c.cost(request.sizes) * 1e6 for c in kernel.near(request)}
    row = {"function": function.name, "dtype": dtype, "shape": list(shape), "us": kernel.us(request), "predicted_us": predicted}
    print(f"{function.name} {dtype} {shape}: {candidates.verdict([row])}", flush=True)
    return row


def judged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with what today's prior predicts for the candidates that were measured."""
    found = []
    for function, dtype in dict.fromkeys((row["function"], row["dtype"]) for row in rows):
        kernel = Kernel(BY_NAME[function], dtype, small=True)
        costs = {candidate.name: candidate.cost for candidate in kernel.kernel.candidates}
        for row in rows:
            if (row["function"], row["dtype"]) == (function, dtype) and row["us"]:
                present = {words.candidate(name): us for name, us in row["us"].items()}
                times = {name: us for name, us in present.items() if name in costs}
                sizes = kernel.sizes(row["shape"])
                predicted = {name: costs[name](sizes) * 1e6 for name in times}
                shortlist = tried(kernel.kernel.candidates, predicted)
                found.append({**row, "us": times, "predicted_us": predicted, "shortlist": shortlist})
    return found


def tried(able: Sequence[Candidate], predicted: Mapping[str, float]) -> list[str]:
    """Those of the candidates with a prediction that a GPU's shortlist has."""
    most = CLEAR_LOSER * min(predicted.values())
    near = sorted((c for c in able if predicted.get(c.name, math.inf) <= most), key=lambda c: predicted[c.name])
    return [c.name for c in varied(near, SHORTLIST, lambda candidate: candidate.traits)]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """By function and type: the regret of the prediction's first, and of the best of its first few."""
    columns = ["function", "type", "shapes", "first", "95 %", "worst", f"best of {SHORTLIST}", "95 %"]
    body = []
    for key in dict.fromkeys((row["function"], row["dtype"]) for row in rows):
        own = [candidates.regrets(dict(row)) for row in rows if (row["function"], row["dtype"]) == key and row["us"]]
        bests = sorted(_regret(row) for row in rows if (row["function"], row["dtype"]) == key and row["us"])
        firsts = sorted(found[0] for found in own)
        at = max(0, -(-95 * len(own) // 100) - 1)
        body.append((*key, len(own), f"{geomean(firsts):.3f}", f"{firsts[at]:.2f}", f"{firsts[-1]:.2f}", f"{geomean(bests):.3f}",
                     f"{bests[at]:.2f}"))  # fmt: skip
    return Table.from_rows("the prior's choice over the best candidate", columns, body)


def _regret(row: Mapping[str, Any]) -> float:
    """The regret of the best that would be tried."""
    names = row.get("shortlist") or sorted(row["predicted_us"], key=row["predicted_us"].get)[:SHORTLIST]
    return min(row["us"][name] for name in names) / min(row["us"].values())


def main() -> None:
    parser = Command(__doc__, out=True)
    parser.add_argument("--functions", nargs="+", choices=list(BY_NAME), default=["column_sum"])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--shapes", type=int, default=22)
    parser.add_argument("--at", nargs="+", help="shapes instead of those, as 64x131072")
    parser.add_argument("--near", type=float, default=NEAR, help="measured are candidates up to so many times the best")
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--judge", nargs="?", type=Path, const=record.RESULTS / "gpu_loops.json")
    given = parser.parsed()
    if given.judge is not None:
        results = record.read(given.judge)
        unseen_rows = [{**row, "us": row["candidates_us"]} for row in results.get("unseen", ()) if "candidates_us" in row]
        show(table(judged([*unseen_rows, *(row for row in results["cells"] if "predicted_us" in row)])))
        return
    cells = Cells(given.out / "gpu_loops_cells.jsonl")
    functions = [BY_NAME[name] for name in given.functions]
    wanted = [shape_of(text) for text in given.at] if given.at else shapes(given.shapes)
    run(functions, given.dtypes, wanted, cells, time.monotonic() + given.seconds, given.near)
    show(table(cells.rows))
    print(record.write("gpu_loops", {"cells": cells.rows, "device": torch.cuda.get_device_name()}, given.out))


if __name__ == "__main__":
    main()
