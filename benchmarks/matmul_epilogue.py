"""Products with an epilogue against eager's two calls: relu(a @ b), one dynamic compile, 33 shapes in turn.

A run is a process with an empty cache, so that every run decides for itself; a cell that is slow in one run of several shows a
choice that follows the moment. `python -m benchmarks.matmul --parts epilogue` runs it; Dynamo's share of a call is left out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.contestants import alone
from benchmarks.direct import Recorded
from benchmarks.loops import chosen
from benchmarks.timing import compare, disturbance_of, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime import compile

ROWS = (2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024)
WEIGHTS = ((1024, 1024), (512, 2048), (2048, 512))
OWN, PEER = "polytile", "eager"
ALLOWED = 0.97
TOLERANCE = 3e-5
SETTLED = 30.0  # seconds to wait for kernels that are still being compiled beside

Found = Mapping[str, Any]
"""What a run found of a cell: its ratio, the candidates, the timings and how busy other processes were."""


def relu_mm(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w)


def measure(given: Mapping[str, Any]) -> dict[str, dict[str, Found]]:
    """Every cell by "MxKxN", in this process, of {"threads", "seconds"}."""
    torch.set_num_threads(given["threads"])
    torch.manual_seed(0)
    found: dict[str, Found] = {}
    recorded = Recorded(relu_mm, OWN)
    with torch.no_grad():
        for m in ROWS:
            for k, n in WEIGHTS:
                x, w = torch.randn(m, k), torch.randn(k, n)
                call, right = recorded.direct(x, w), relu_mm(x, w)
                off = float((call() - right).abs().max() / right.abs().max())
                assert off <= TOLERANCE, f"The result of {m}x{k}x{n} is {off:.1e} off eager's."
                compile.settle(SETTLED)
                direct = compare({OWN: call, PEER: functools.partial(relu_mm, x, w)}, seconds=given["seconds"])
                cell = {"ratio": round(direct.ratio(OWN, PEER), 4), "candidates": list(chosen(recorded))}
                found[f"{m}x{k}x{n}"] = {**cell, **direct.as_json()}
    return {"cells": found}


def run(threads: int, seconds: float) -> dict[str, Found]:
    """The cells of a run in a process of its own, which finds nothing on record."""
    found: dict[str, Found] = alone("benchmarks.matmul_epilogue:measure", {"threads": threads, "seconds": seconds})["cells"]
    return found


def table(runs: Sequence[Mapping[str, Found]], threads: int) -> Table:
    """Ratios of each shape, a column a run."""
    body: list[tuple[Any, ...]] = [
        (cell, *[one[cell]["ratio"] for one in runs], " | ".join(dict.fromkeys(one[cell]["candidates"][0] for one in runs)))
        for cell in runs[0]
    ]
    body.append(("geomean", *[geomean(cell["ratio"] for cell in one.values()) for one in runs], ""))
    columns: list[Column | str] = ["M×K×N", *(Column(f"run {k + 1}", ratio) for k in range(len(runs))), "candidates"]
    every = [(cell["ratio"], name) for one in runs for name, cell in one.items()]
    short = [f"{name} {value:.2f}" for value, name in sorted(every) if value < ALLOWED]
    notes = [f"Least: {min(every)[0]:.2f}, {min(every)[1]}. Below {ALLOWED}: {', '.join(short) or 'none'}."]
    notes.append(disturbance_of(cell["cores_used_by_others"] for one in runs for cell in one.values()))
    title = f"Time of eager over polytile's, relu(a @ b), float32, {threads} threads, without Dynamo's share"
    return Table.from_rows(title, columns, body, notes)


def show_runs(number: int, threads: int, seconds: float, name: str, keep: bool) -> None:
    """Makes so many runs, shows them, and with `keep` adds them to benchmarks/results/matmul_epilogue.json under `name`."""
    runs = [run(threads, seconds) for _ in range(number)]
    show(table(runs, threads))
    if keep:
        isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
        named = f"{name} t{threads}" + (f" {isa}" if isa else "")
        record.add("matmul_epilogue", "runs", {named: runs})
