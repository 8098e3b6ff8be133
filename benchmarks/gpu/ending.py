"""First calls of products on a machine whose cores are few: how many kernels they compile, for how long, and how fast what they
choose is, with compilers called off for candidates that can no longer win (tuning/hopeless.py) and without.

    python -m benchmarks.gpu.ending --seconds 60      measures, writes OUT/gpu_ending.json, prints its table
    python -m benchmarks.gpu.ending --show            only prints the table of the committed file

Every first call starts with an empty cache directory; workers are started before.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import polytile
from benchmarks import record
from benchmarks.compilers import copied
from benchmarks.gpu.candidates import Tried
from benchmarks.gpu.product_cell import first_call
from benchmarks.gpu.products import DTYPES, Shape
from benchmarks.gpu.replay import kernel_times
from benchmarks.timing import geomean
from polytile.report import Table, show
from polytile.report.environment import accelerator
from polytile.tuning import hopeless

SUITE = "gpu_ending"
WORKERS, SHORTLIST = 2, 6
PRODUCTS = (
    (Tried("int8", "int8 × int8, scaled", ("int8",)), "int8"),
    (Tried("llm", "linear", ("bf16",)), "bf16"),
    (Tried("prologue", "int4 weights", ("bf16",)), "bf16"),
)
SHAPES: tuple[Shape, ...] = ((64, 4096, 4096), (2048, 4096, 4096))
NEVER = 0.0
"""hopeless.BETTER with which nothing is called off."""


OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "stall": "tune", "shortlist": SHORTLIST, "compile_workers": WORKERS, "sources": "triton,library,cublaslt",
}  # fmt: skip
"""CUTLASS's kernels take 7 s each to compile, Triton's 1: the latter show the same in less time."""


def one(tried: Tried, dtype: str, shape: Shape, better: float) -> tuple[dict[str, Any], Callable[[], Any]]:
    """What the first call took, and a later one."""
    case = tried.case
    args = case.make(*shape, DTYPES[dtype])
    os.environ["POLYTILE_CACHE_DIR"] = tempfile.mkdtemp()
    polytile.reset()
    hopeless.BETTER, before = better, hopeless.BETTER
    call = torch.compile(copied(case.run, f"ending{better > 0:d}"), backend="polytile", options=OPTIONS, dynamic=False)
    _, seconds = first_call(call, args)
    hopeless.BETTER = before
    found = {"seconds": seconds, "compiled": polytile.counters["compiler_runs"]}
    return found, functools.partial(call, *args)


def measured(seconds: float) -> dict[str, Any]:
    began, cells = time.monotonic(), []
    one(*PRODUCTS[1], (64, 256, 256), NEVER)  # starts the workers
    for shape in SHAPES:
        for tried, dtype in PRODUCTS:
            if time.monotonic() - began > seconds:
                break
            ended, later = one(tried, dtype, shape, hopeless.BETTER)
            whole, beside = one(tried, dtype, shape, NEVER)
            us = kernel_times({"ended": later, "whole": beside})
            cells.append({"function": tried.name, "shape": list(shape), "ended": ended, "whole": whole, "us": us})
            print(cells[-1], flush=True)
    return {"device": accelerator(), "workers": WORKERS, "shortlist": SHORTLIST, "cells": cells}


def report(result: dict[str, Any]) -> None:
    rows = [
        (
            cell["function"], "×".join(map(str, cell["shape"])), cell["whole"]["compiled"], cell["ended"]["compiled"],
            f"{cell['whole']['seconds']:.1f}", f"{cell['ended']['seconds']:.1f}",
            f"{cell['us']['ended'] / cell['us']['whole']:.3f}",
        )
        for cell in result["cells"]
    ]  # fmt: skip
    columns = ["function", "M×N×K", "compiled, all", "until the rest cannot win", "s, all", "s", "time of what is chosen"]
    show(Table.from_rows(f"first calls with {result['workers']} compiling workers, {result['device']}", columns, rows))
    for what in ("compiled", "seconds"):
        ratio = geomean([cell["ended"][what] / cell["whole"][what] for cell in result["cells"]])
        print(f"{what}: geomean {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="when no new product is begun")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or record.RESULTS))
    parser.add_argument("--show", action="store_true", help="only print the table of the committed file")
    given = parser.parse_args()
    if given.show:
        report(json.loads((given.out / f"{SUITE}.json").read_text())["results"])
        return
    result = measured(given.seconds)
    record.write(SUITE, result, given.out)
    report(result)


if __name__ == "__main__":
    main()
