"""`python -m benchmarks.gpu.gemm [--parts square thin ...] [--seconds 500]`: products on a GPU against cuBLAS and the peer.

Parts are measured in the order in which they are named, until time is over; with `--ahead` what later cells will try is compiled
while earlier ones are measured. Cells go to OUT/gpu_gemm_cells.jsonl as they are measured and are not measured twice; a run goes
on from those of earlier ones that `--resume` names (a file of cells, or a gpu_gemm.json), so that the whole may be spread over
short sessions. The tables at the end and OUT/gpu_gemm.json are of everything there is. Parts `matrix` and `pairs` compile for one
hint and call at other sizes (SPEC H5); part `candidates` times every candidate at some sizes, on which the prior is fitted.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import polytile
from benchmarks import record
from benchmarks.compilers import copied
from benchmarks.gpu import hints, products
from benchmarks.gpu.candidates import Trials, every_candidate, verdict
from benchmarks.gpu.grid import Cells, new_decisions
from benchmarks.gpu.products import DTYPES, Case, Shape
from benchmarks.gpu.products_ahead import Compiled
from benchmarks.gpu.replay import copy_bandwidth, kernel_times
from benchmarks.timing import geomean
from polytile.report import Table, show

APART = ("matrix", "pairs", "candidates")
"""Parts that are no cells of polytile against the library."""
PARTS = (*products.PARTS, *APART)
WITHIN = 1.02
COUNTED = ("compiler_runs", "candidates_benchmarked")
TUNING = ("first_call_s", "peer_first_call_s", *COUNTED)
"""What tuning at a new shape takes: seconds, and what they are spent on."""
OPTIONS: dict[str, Any] = {"persist": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["square", "thin", "epilogue", *APART])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--step", type=int, default=256, help="between sizes of squares, and rows of the llm part")
    parser.add_argument("--shapes", type=int, default=300, help="of the part candidates")
    parser.add_argument("--ahead", action="store_true", help="compile for later cells meanwhile, and time no first call")
    parser.add_argument("--peer", action="store_true", help="the peer's max-autotune, compiled for each shape alone, too")
    parser.add_argument("--seconds", type=float, default=500, help="when no new cell is begun")
    parser.add_argument("--out", default=os.environ.get("OUT") or str(record.RESULTS))
    parser.add_argument("--resume", type=Path, nargs="*", default=[], help="cells of earlier runs to go on from")
    parser.add_argument("--show", type=Path, help="only print the tables of a result file; needs no GPU")
    given = parser.parse_args()
    if given.show is not None:
        report(json.loads(given.show.read_text())["results"])
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu.gemm needs an NVIDIA GPU; this process sees none.")
    torch._dynamo.config.recompile_limit = 256
    out = Path(given.out)
    cells = Cells(out / "gpu_gemm_cells.jsonl")
    for file in given.resume:
        cells.take(file)
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy_bytes_per_second": copy_bandwidth()}
    try:
        _run(given, cells, time.monotonic() + given.seconds)
    finally:
        results["cells"] = cells.rows
        path = record.write("gpu_gemm", results, out)
        report(results)
        print(path)


def _run(given: argparse.Namespace, cells: Cells, deadline: float) -> None:
    """Every part that was asked for, in that order."""
    jobs = [_Job(case, dtype, cells, given) for part in given.parts for case, dtype in _of_part(part, given)]
    both = [dtype for dtype in ("bf16", "fp32") if dtype in given.dtypes]
    if given.ahead:
        for dtype in both if {"matrix", "pairs"} & set(given.parts) else []:
            Trials(dtype).ask(hints.SIZES if "pairs" in given.parts else hints.RUN_AT)
        for job in jobs:
            job.ask()
    for part in given.parts:
        if part == "matrix":
            hints.matrix(both, cells, deadline, given.peer)
        elif part == "pairs":
            hints.pairs(both, cells, deadline)
        elif part == "candidates":
            every_candidate(both, cells, deadline, given.shapes)
        for job in jobs:
            if job.case.part == part:
                job.measure(deadline)


def _of_part(part: str, given: argparse.Namespace) -> list[tuple[Case, str]]:
    return [(c, d) for c in products.cases(given.step) if c.part == part for d in c.dtypes if d in given.dtypes]


class _Job:
    """The cells of one function and type that are missing, from one dynamic compile."""

    def __init__(self, case: Case, dtype: str, cells: Cells, given: argparse.Namespace) -> None:
        self.case, self.dtype, self.cells, self.given = case, dtype, cells, given
        self.key = f"{case.part}: {case.name}"
        self.wanted = [shape for shape in case.shapes if not cells.has(self.key, dtype, shape)]
        self.compiled = Compiled(case, dtype, OPTIONS)

    def ask(self) -> None:
        """Has compiled in the background what the cells are going to try."""
        _switch(self.dtype)
        try:
            self.compiled.ask(self.wanted)
        except Exception as error:
            torch.cuda.synchronize()
            print(f"{self.key} {self.dtype}, ahead: {type(error).__name__}: {str(error)[:400]}", flush=True)

    def measure(self, deadline: float) -> None:
        _switch(self.dtype)
        known: set[str] = set()
        new_decisions(known)
        for shape in self.wanted:
            if time.monotonic() > deadline:
                return
            row: dict[str, Any] = {"function": self.key, "part": self.case.part, "dtype": self.dtype, "shape": list(shape)}
            try:
                row.update(_cell(self.case, self.compiled.call, shape, self.dtype, self.given.peer), chosen=_chosen(known))
            except Exception as error:
                torch.cuda.synchronize()
                row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
            if self.given.ahead:
                row = {name: value for name, value in row.items() if name not in TUNING}
            self.cells.add(row)
            print(_line(row), flush=True)


def _switch(dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


def _cell(case: Case, ours: Any, shape: Shape, dtype: str, peer: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    args = case.make(*shape, DTYPES[dtype])
    before = {name: polytile.counters[name] for name in COUNTED}
    got, first = _first(ours, args)
    counts = {name: polytile.counters[name] - before[name] for name in COUNTED}
    calls, took = {"library": case.run, "polytile": ours}, {}
    if peer:
        torch._dynamo.reset_code(case.run.__code__)
        calls["peer"] = torch.compile(
            copied(case.run, f"theirs{shape[0]}"), dynamic=False, mode="max-autotune-no-cudagraphs"
        )
        took["peer_first_call_s"] = _first(calls["peer"], args)[1]
    times = kernel_times({name: functools.partial(call, *args) for name, call in calls.items()})
    results, eager = tree_leaves(got), tree_leaves(case.run(*args))
    moved = sum(tensor.nbytes for tensor in (*args, *results))
    wrong = next(filter(None, (_wrong(own, right, shape[2]) for own, right in zip(results, eager, strict=True))), "")
    return {"us": times, "first_call_s": first, **took, **counts, "bytes": moved, "wrong": wrong}


def _first(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, float]:
    """What a first call gives, and how many seconds it takes."""
    began = time.perf_counter()
    got = call(*args)
    torch.cuda.synchronize()
    return got, round(time.perf_counter() - began, 3)


def _chosen(known: set[str]) -> str:
    return "; ".join(new_decisions(known)) or "as in a regime met before"


def _wrong(got: torch.Tensor, eager: torch.Tensor, k: int) -> str:
    """What is wrong with the result beside the library's, whose own rounding is that of its type and of TF32."""
    scale = eager.float().abs().mean().clamp_min(1e-30)
    error = float((got.float() - eager.float()).abs().max() / scale)
    least = max(torch.finfo(eager.dtype).eps, 2.0**-10 if torch.backends.cuda.matmul.allow_tf32 else 2.0**-20 * k**0.5)
    return "" if error <= 16 * least else f"off by {error:.2g} of the mean"


def _line(row: dict[str, Any]) -> str:
    label = f"{row['function']} {row['dtype']} {'×'.join(map(str, row['shape']))}"
    if "error" in row:
        return f"{label}: {row['error']}"
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    return f"{label}: {times} µs; {row['chosen']}{' WRONG ' + row['wrong'] if row['wrong'] else ''}"


def report(results: dict[str, Any]) -> None:
    """For each function and type how polytile stands to the best of the others; the tables of the other parts."""
    of_part = {part: [row for row in results["cells"] if row["part"] == part] for part in APART}
    others = [row for row in results["cells"] if row["part"] not in APART]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in others:
        if "us" in row and "polytile" in row["us"]:
            groups.setdefault((row["function"], row["dtype"]), []).append(row)
    body = []
    for (function, dtype), rows in groups.items():
        over = [row["us"]["polytile"] / min(us for name, us in row["us"].items() if name != "polytile") for row in rows]
        near = sum(ratio <= WITHIN for ratio in over)
        worst = rows[max(range(len(over)), key=over.__getitem__)]
        share = max(row["bytes"] / row["us"]["polytile"] * 1e6 / results["copy_bytes_per_second"] for row in rows)
        where = "×".join(map(str, worst["shape"]))
        body.append((function, dtype, len(rows), f"{geomean(over):.3f}", f"{max(over):.2f} at {where}",
                     f"{near / len(over):.0%}", f"{share:.0%}"))  # fmt: skip
    columns = ["function", "type", "shapes", "geomean", "worst", "within 2 %", "most of copy"]
    show(Table.of("polytile's kernel time over the best of the others", columns, body))
    costs = []
    for (function, dtype), rows in groups.items():
        told = [row for row in rows if "first_call_s" in row]
        counts = [str(sum(row[name] for row in told if name in row)) for name in COUNTED]
        spent = [f"{sum(row.get(name, 0.0) for row in told):.1f}" for name in ("first_call_s", "peer_first_call_s")]
        if told:
            costs.append((function, dtype, len(told), *counts, *spent))
    columns = ["function", "type", "shapes", "compiled", "candidates timed", "s of first calls", "s of the peer's"]
    show(Table.of("what tuning took", columns, costs, folded=True))
    if of_part["matrix"]:
        hints.show_matrix(of_part["matrix"])
    if of_part["pairs"]:
        hints.show_pairs(of_part["pairs"])
    for dtype in dict.fromkeys(row["dtype"] for row in of_part["candidates"]):
        own = [row for row in of_part["candidates"] if row["dtype"] == dtype]
        print(f"the prior as it was then, {dtype}, against the best of the candidates timed: {verdict(own)}")
    for row in others:
        if row.get("error") or row.get("wrong"):
            print(f"{row['function']} {row['dtype']} {row['shape']}: {row.get('error') or row['wrong']}")
    ratios = [row["us"]["polytile"] / row["us"]["library"] for rows in groups.values() for row in rows if "library" in row["us"]]
    if ratios:
        print(f"all: {len(ratios)} cells, geomean {geomean(ratios):.3f} of the library")


if __name__ == "__main__":
    main()
