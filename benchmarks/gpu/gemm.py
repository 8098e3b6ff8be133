"""`python -m benchmarks.gpu.gemm [--parts square thin ...] [--seconds 500]`: products on a GPU against cuBLAS and the peer.

Cells go to OUT/gpu_gemm_cells.jsonl as they are measured and are not measured twice; the tables at the end and
OUT/gpu_gemm.json are of everything there is. Part `matrix` compiles for one hint and calls at other sizes (SPEC H5); part
`candidates` times every candidate at some sizes, which is what the prior is fitted on.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import polytile
from benchmarks import record
from benchmarks.compilers import copied
from benchmarks.gpu import products
from benchmarks.gpu.candidates import every_candidate, summary
from benchmarks.gpu.grid import Cells, new_decisions
from benchmarks.gpu.products import DTYPES, Case, Shape
from benchmarks.gpu.replay import copy_bandwidth, kernel_times
from benchmarks.timing import geomean
from polytile.report import Table, show

PARTS = (*products.PARTS, "matrix", "candidates")
HINTS, RUN_AT = (64, 256, 4096), (64, 256, 1024, 4096)
WITHIN = 1.02
OPTIONS: dict[str, Any] = {"persist": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["square", "thin", "epilogue", "matrix", "candidates"])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--step", type=int, default=256, help="between sizes of squares, and rows of the llm part")
    parser.add_argument("--peer", action="store_true", help="the peer's max-autotune, compiled for each shape alone, too")
    parser.add_argument("--seconds", type=float, default=500, help="when no new cell is begun")
    parser.add_argument("--out", default=os.environ.get("OUT") or str(record.RESULTS))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu.gemm needs an NVIDIA GPU; this process sees none.")
    torch._dynamo.config.recompile_limit = 256
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    cells = Cells(out / "gpu_gemm_cells.jsonl")
    deadline = time.monotonic() + given.seconds
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy_bytes_per_second": copy_bandwidth()}
    chosen = [case for case in products.cases(given.step) if case.part in given.parts]
    kinds = [part for part in ("matrix", "candidates") if part in given.parts]
    try:
        for number, (case, dtype) in enumerate(todo := [(c, d) for c in chosen for d in c.dtypes if d in given.dtypes]):
            share = (deadline - time.monotonic()) / (len(todo) - number + len(kinds))
            _measure(case, dtype, cells, time.monotonic() + share, given.peer)
        if "matrix" in given.parts:
            share = (deadline - time.monotonic()) / len(kinds)
            results["matrix"] = list(_matrix([d for d in ("bf16", "fp32") if d in given.dtypes], time.monotonic() + share))
        if "candidates" in given.parts:
            results["candidates"] = every_candidate([d for d in ("bf16", "fp32") if d in given.dtypes], deadline)
    finally:
        results["cells"] = cells.rows
        path = record.write("gpu_gemm", results, out)
        report(results)
        print(path)


def _switch(dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


def _measure(case: Case, dtype: str, cells: Cells, deadline: float, peer: bool) -> None:
    """The shapes of one function and type that are missing, from one dynamic compile."""
    key = f"{case.part}: {case.name}"
    wanted = [shape for shape in case.shapes if not cells.has(key, dtype, shape)]
    if not wanted:
        return
    torch._dynamo.reset()
    polytile.reset()
    _switch(dtype)
    ours = torch.compile(copied(case.run, "ours"), backend="polytile", dynamic=True, options=OPTIONS)
    known: set[str] = set()
    for shape in wanted:
        if time.monotonic() > deadline:
            return
        row: dict[str, Any] = {"function": key, "part": case.part, "dtype": dtype, "shape": list(shape)}
        try:
            row.update(_cell(case, ours, shape, dtype, peer), chosen=_chosen(known))
        except Exception as error:
            torch.cuda.synchronize()
            row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        row["bytes"] = products.traffic(case, shape)
        cells.add(row)
        print(_line(row), flush=True)


def _cell(case: Case, ours: Any, shape: Shape, dtype: str, peer: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    args = case.make(*shape, DTYPES[dtype])
    began = time.perf_counter()
    got = ours(*args)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    calls = {"library": case.run, "polytile": ours}
    if peer:
        torch._dynamo.reset_code(case.run.__code__)
        calls["peer"] = torch.compile(
            copied(case.run, f"theirs{shape[0]}"), dynamic=False, mode="max-autotune-no-cudagraphs"
        )
        calls["peer"](*args)
    times = kernel_times({name: functools.partial(call, *args) for name, call in calls.items()})
    return {"us": times, "first_call_s": round(first, 3), "wrong": _wrong(got, case.run(*args), shape[2])}


def _chosen(known: set[str]) -> str:
    return "; ".join(new_decisions(known)) or "as in a regime met before"


def _wrong(got: torch.Tensor, eager: torch.Tensor, k: int) -> str:
    """What is wrong with the result beside the library's, whose own rounding is that of its type and of TF32."""
    scale = eager.float().abs().mean().clamp_min(1e-30)
    error = float((got.float() - eager.float()).abs().max() / scale)
    least = max(torch.finfo(eager.dtype).eps, 2.0**-10 if torch.backends.cuda.matmul.allow_tf32 else 2.0**-20 * k**0.5)
    return "" if error <= 16 * least else f"off by {error:.2g} of the mean"


def _matrix(dtypes: list[str], deadline: float) -> Iterator[dict[str, Any]]:
    """x @ y compiled with one hint (and with all of them), at all sizes: kernel µs."""
    for dtype in dtypes:
        _switch(dtype)
        args = {n: products.cases(64)[0].make(n, n, n, DTYPES[dtype]) for n in RUN_AT}
        for hint in HINTS if time.monotonic() < deadline else ():
            torch._dynamo.reset()
            polytile.reset()
            ours = polytile.compile(copied(products.product, "ours"), hints=[hint], options=OPTIONS)
            known: set[str] = set()
            for n in RUN_AT:
                ours(*args[n])
                times = kernel_times(
                    {"library": functools.partial(torch.mm, *args[n]), "polytile": functools.partial(ours, *args[n])}
                )
                row = {"dtype": dtype, "hint": hint, "size": n, "us": times, "chosen": _chosen(known)}
                print(json.dumps(row), flush=True)
                yield row


def _line(row: dict[str, Any]) -> str:
    label = f"{row['function']} {row['dtype']} {'×'.join(map(str, row['shape']))}"
    if "error" in row:
        return f"{label}: {row['error']}"
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    return f"{label}: {times} µs; {row['chosen']}{' WRONG ' + row['wrong'] if row['wrong'] else ''}"


def report(results: dict[str, Any]) -> None:
    """For each function and type how polytile stands to the best of the others."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["cells"]:
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
    matrix = [(r["dtype"], r["hint"], r["size"], f"{r['us']['polytile']:.1f}", f"{r['us']['library']:.1f}", r["chosen"])
              for r in results.get("matrix", [])]  # fmt: skip
    if matrix:
        show(Table.of("compiled with a hint, run at a size, µs", ["type", "hint", "size", "polytile", "library", "by"], matrix))
    if results.get("candidates"):
        print(f"the prior alone, against the best of all candidates: {summary(results['candidates'])}")
    for row in results["cells"]:
        if row.get("error") or row.get("wrong"):
            print(f"{row['function']} {row['dtype']} {row['shape']}: {row.get('error') or row['wrong']}")
    ratios = [row["us"]["polytile"] / row["us"]["library"] for rows in groups.values() for row in rows if "library" in row["us"]]
    if ratios:
        print(f"all: {len(ratios)} cells, geomean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} of the library")


if __name__ == "__main__":
    main()
