"""`python -m benchmarks.gpu.gemm [--parts square thin ...] [--seconds 500]`: products on a GPU against cuBLAS and the peer.

Every function, type and part of its own gets an equal share of the time in the order in which parts are named, its shapes dealt
out so that the first few are of all kinds; what time is left goes to what is missing, in that order. With `--ahead` what is to be
tried next is compiled by the machine's cores meanwhile. Cells go to OUT/gpu_gemm_cells.jsonl as they are measured and are not
measured twice; a run goes on from those of earlier ones that `--resume` names (a file of cells, or a gpu_gemm.json), so that the
whole may be spread over short sessions, and measures those of the revisions that `--again` names once more. The tables at the end
and OUT/gpu_gemm.json are of everything there is. Parts `matrix` and `pairs` compile for one hint and call at other sizes (SPEC
H5); part `tuning` is what first calls take, in a process of its own (tuning.py); part `candidates` times every candidate at some
sizes, on which the prior is fitted.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import copied
from benchmarks.gpu import hints, products, tuning
from benchmarks.gpu.candidates import TRIED, Trials, every_candidate
from benchmarks.gpu.gemm_report import report
from benchmarks.gpu.grid import Cells, new_decisions
from benchmarks.gpu.product_cell import COUNTED, cell, switch
from benchmarks.gpu.products import DTYPES, Case, Shape
from benchmarks.gpu.products_ahead import Compiled
from benchmarks.gpu.replay import copy_bandwidth

APART = ("matrix", "pairs", "tuning", "candidates")
"""Parts that are no cells of polytile against the library."""
PARTS = (*products.PARTS, *APART)
TUNING = ("first_call_s", "peer_first_call_s", *COUNTED)
"""What tuning at a new shape takes: seconds, and what they are spent on."""
OPTIONS: dict[str, Any] = {"persist": False}
ASKED_AHEAD = 3
"""How many functions before its turn what a function will try is compiled."""


class Work(Protocol):
    """Cells of one kind that may be missing."""

    def ask(self) -> None:
        """Has compiled in the background what the cells are going to try."""

    def measure(self, deadline: float) -> None:
        """Measures what is missing, until the clock `time.monotonic` says so."""


def main() -> None:
    parser = Command(__doc__, "gpu_gemm", report, gpu=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["square", "thin", "epilogue", "matrix", "pairs"])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--functions", nargs="+", help="only functions of these names, of parts that have several")
    parser.add_argument("--step", type=int, default=256, help="between sizes of squares, and rows of the llm part")
    parser.add_argument("--shapes", type=int, default=300, help="of the part candidates")
    parser.add_argument("--ahead", action="store_true", help="compile for later cells meanwhile, and time no first call")
    parser.add_argument("--peer", action="store_true", help="the peer's max-autotune, compiled for each shape alone, too")
    parser.add_argument("--seconds", type=float, default=500, help="when no new cell is begun")
    parser.add_argument("--suite", default="gpu_gemm", help="name of the result file: one for each device")
    parser.add_argument("--resume", type=Path, nargs="*", default=[], help="cells of earlier runs to go on from")
    parser.add_argument("--again", nargs="*", default=[], help="revisions whose cells are measured once more")
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 256
    signal.signal(signal.SIGTERM, _ended)
    deadline, out = time.monotonic() + given.seconds, given.out
    cells = Cells(out / "gpu_gemm_cells.jsonl", given.again)
    for file in given.resume:
        cells.take(file)
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy_bytes_per_second": copy_bandwidth()}
    try:
        run([work for part in given.parts for work in _of_part(part, cells, given)], deadline, given.ahead)
    finally:
        results["cells"] = cells.rows
        path = record.write(given.suite, results, out)
        report(results)
        print(path)


def _ended(number: int, frame: Any) -> None:
    raise SystemExit(f"ended by signal {number}")


def run(work: Sequence[Work], deadline: float, ahead: bool) -> None:
    """All of it twice: first each for its share of the time, then what is left, in order. What fails costs no other its turn."""
    for each in work[: ASKED_AHEAD if ahead else 0]:
        _told(each.ask)
    for place, each in enumerate(work):
        if ahead and place + ASKED_AHEAD < len(work):
            _told(work[place + ASKED_AHEAD].ask)
        _told(each.measure, time.monotonic() + (deadline - time.monotonic()) / (len(work) - place))
    for each in work:
        _told(each.measure, deadline)


def _told(step: Callable[..., None], *args: Any) -> None:
    """Takes a step; prints the error that it may end with."""
    try:
        step(*args)
    except Exception as error:
        torch.cuda.synchronize()
        print(f"{step.__qualname__}: {type(error).__name__}: {str(error)[:400]}", flush=True)


def _of_part(part: str, cells: Cells, given: argparse.Namespace) -> list[Work]:
    both = [dtype for dtype in ("bf16", "fp32") if dtype in given.dtypes]
    match part:
        case "matrix":
            return [_Apart(dtype, hints.RUN_AT, hints.matrix, cells, given.peer) for dtype in both]
        case "pairs":
            return [_Apart(dtype, hints.SIZES, hints.pairs, cells) for dtype in both]
        case "candidates":
            asked = [each for each in TRIED if not given.functions or each.name in given.functions]
            pairs = [(each, dtype) for each in asked for dtype in each.dtypes if dtype in given.dtypes]
            return [_Apart(dtype, (), every_candidate, cells, given.shapes, each) for each, dtype in pairs]
        case "tuning":
            return [_Apart("bf16", (), tuning.measure, cells)]
    cases = [(case, dtype) for case in products.cases(given.step) if case.part == part for dtype in case.dtypes]
    wanted = [(case, dtype) for case, dtype in cases if not given.functions or case.name in given.functions]
    return [_Job(case, dtype, cells, given) for case, dtype in wanted if dtype in given.dtypes]


class _Apart:
    """A part that `run(dtype, deadline, ...)` measures; what it tries at squares of these sizes may be compiled ahead."""

    def __init__(self, dtype: str, squares: Sequence[int], run: Callable[..., None], *more: Any) -> None:
        self.dtype, self.squares, self.run, self.more = dtype, squares, run, more

    def ask(self) -> None:
        if self.squares:
            Trials(self.dtype).ask(self.squares)

    def measure(self, deadline: float) -> None:
        self.run(self.dtype, deadline, *self.more)


class _Job:
    """The cells of one function and type that are missing, from one dynamic compile."""

    def __init__(self, case: Case, dtype: str, cells: Cells, given: argparse.Namespace) -> None:
        self.case, self.dtype, self.cells, self.given = case, dtype, cells, given
        self.key = f"{case.part}: {case.name}"
        self.compiled = Compiled(copied(case.run, "ours"), self._made, case.traced, OPTIONS)
        self.known: set[str] = set()

    def _made(self, m: int, n: int, k: int) -> tuple[Any, ...]:
        return self.case.make(m, n, k, DTYPES[self.dtype])

    @property
    def wanted(self) -> list[Shape]:
        return spread([shape for shape in self.case.shapes if not self.cells.has(self.key, self.dtype, shape)])

    def ask(self) -> None:
        switch(self.dtype)
        self.compiled.ask(self.wanted)

    def measure(self, deadline: float) -> None:
        switch(self.dtype)
        new_decisions(self.known)
        for shape in self.wanted:
            if time.monotonic() > deadline:
                return
            row: dict[str, Any] = {"function": self.key, "part": self.case.part, "dtype": self.dtype, "shape": list(shape)}
            try:
                row.update(cell(self.case, self.compiled.call, shape, self.dtype, self.given.peer), chosen=_chosen(self.known))
            except Exception as error:
                torch.cuda.synchronize()
                row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
            if self.given.ahead:
                row = {name: value for name, value in row.items() if name not in TUNING}
            self.cells.add(row)
            print(_line(row), flush=True)


def spread(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes dealt out: however many of the first are taken, they stand far apart in the order given."""
    return [shapes[place] for place in sorted(range(len(shapes)), key=lambda place: f"{place:016b}"[::-1])]


def _chosen(known: set[str]) -> str:
    return "; ".join(new_decisions(known)) or "as in a regime met before"


def _line(row: dict[str, Any]) -> str:
    label = f"{row['function']} {row['dtype']} {'×'.join(map(str, row['shape']))}"
    if "error" in row:
        return f"{label}: {row['error']}"
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    return f"{label}: {times} µs; {row['chosen']}{' WRONG ' + row['wrong'] if row['wrong'] else ''}"


if __name__ == "__main__":
    main()
