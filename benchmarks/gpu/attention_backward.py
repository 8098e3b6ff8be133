"""The derivative of attention: generated kernels beside the library's, each called by itself: times, errors against float64.

    python -m benchmarks.gpu.attention_backward --out DIR [--seconds 200] [--only backward]

Each cell runs every candidate that says it is valid there, compares the gradients with the definition in float64, and times all
in turns by replayed graphs. What has been measured when the time is up is written to DIR/attention_backward.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.attention_kernels import CUDA, DTYPES, in_turns
from polytile.attention.arguments import make_args, operands, reference
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.attention import candidates
from polytile.runtime import launcher
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts

SOURCES = ("library", "triton")
CHECKED = 1 << 27
"""Scores up to which a cell is compared with float64."""
Cell = dict[str, Any]


def cells() -> Iterator[Cell]:
    """Training shapes, telling ones first."""
    for (length, batch), head, causal in itertools.product(
        ((1024, 8), (384, 32), (4096, 2), (300, 8), (2048, 4), (128, 16), (8192, 1)), (64, 128), (True, False)
    ):
        yield cell("bf16", batch, 2048 // head, 2048 // head, length, head, causal)
    for length in (1024, 300):
        yield cell("bf16", 4, 32, 8, length, 128, True)
        yield cell("bf16", 4, 8, 8, length, 256, True)
        yield cell("fp32", 4, 16, 16, length, 64, True)


def cell(dtype: str, batch: int, heads: int, shared: int, length: int, head: int, causal: bool) -> Cell:
    size = {"B": batch, "Hq": heads, "Hkv": shared, "Mq": length, "Mkv": length, "D": head, "Dv": head}
    return {"dtype": dtype, "causal": causal, "size": size}


def measured(cell: Cell, names: Callable[[str], bool], seconds: float) -> dict[str, Any]:
    """Times and errors of every candidate that is valid."""
    causal = Causal.BOTTOM_RIGHT if cell["causal"] else Causal.NO
    problem, size = AttentionProblem(DTYPES[cell["dtype"]], None, causal, backward=True), cell["size"]
    args = make_args(problem, size, CUDA)
    right = exact(problem, args) if size["B"] * size["Hq"] * size["Mq"] * size["Mkv"] <= CHECKED else None
    known = facts_of(problem, size)
    runs: dict[str, Callable[[int], Any]] = {}
    row: dict[str, Any] = {"errors": {}, "failed": {}, "predicted_us": {}}
    whole = {**problem.dense_strides(size), **size}
    for candidate in candidates(problem, CUDA, SOURCES, None):
        if not (candidate.valid(whole) and names(candidate.name)):
            continue
        try:
            calls = repeated(candidate.specialise(known).entry(), args)
            for gradient in operands(problem, args).gradients:
                gradient.fill_(float("nan"))
            calls(1)
            torch.cuda.synchronize()
        except Exception as error:
            row["failed"][candidate.name] = str(error).splitlines()[0][:300]
            continue
        if right is not None:
            row["errors"][candidate.name] = [
                float((mine.double() - other).norm() / other.norm())
                for mine, other in zip(operands(problem, args).gradients, right, strict=True)
            ]
        runs[candidate.name] = calls
        row["predicted_us"][candidate.name] = candidate.cost(whole) * 1e6
    return {"cell": cell, "us": in_turns(runs, seconds), **row}


def exact(problem: AttentionProblem, args: list[Any]) -> list[torch.Tensor]:
    """The gradients by the definition, in float64."""
    wide = [each.double() if isinstance(each, torch.Tensor) else each for each in args]
    reference(problem)(*wide)
    return list(operands(problem, wide).gradients)


def facts_of(problem: AttentionProblem, size: dict[str, int]) -> Facts:
    """What a regime knows of these sizes."""
    strides = problem.dense_strides(size)
    exact = tuple((name, size[name]) for name in ("Hq", "Hkv", "D", "Dv"))
    divisible = frozenset(name for name, value in strides.items() if value % 16 == 0)
    return Facts(divisible, frozenset(tensor.name for tensor in problem.tensors), exact=exact)


def repeated(entry: Any, args: list[Any]) -> Callable[[int], float]:
    return lambda count: launcher.time_burst(entry, args, count)


def line(row: dict[str, Any]) -> str:
    """The best of ours beside the library's best, the largest error, what the prior would choose."""
    us, size = row["us"], row["cell"]["size"]
    ours = [name for name in us if name.startswith("backward")]
    theirs = [name for name in us if name not in ours]
    title = f"{row['cell']['dtype']} B{size['B']} H{size['Hq']}/{size['Hkv']} S{size['Mq']} D{size['D']}"
    if not ours or not theirs:
        return f"{title:34} nothing to compare: {row['failed']}"
    best, other = min(ours, key=us.__getitem__), min(theirs, key=us.__getitem__)
    wrong = {name: max(each) for name, each in row["errors"].items()}
    chosen = min(row["predicted_us"], key=row["predicted_us"].__getitem__)
    errors = " and ".join(f"{wrong.get(name, float('nan')):.1e}" for name in (best, other))
    compared = f"{us[best]:9.1f} us {best}, {us[other] / us[best]:.3f} of {other}, errors {errors}"
    return f"{title:34} {compared}, prior chooses {chosen}, failed {len(row['failed'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--only", default="", help="a word that names of candidates must hold")
    options = parser.parse_args()
    end, facts, rows = time.monotonic() + options.seconds, device.facts(0), []
    for each in cells():
        if time.monotonic() > end:
            print("time is up", flush=True)
            break
        rows.append(measured(each, lambda name: options.only in name, 1.0))
        print(line(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        options.out.mkdir(parents=True, exist_ok=True)
        result = {"device": facts.name, "torch": torch.__version__, "rows": rows}
        (options.out / "attention_backward.json").write_text(json.dumps(result, indent=1) + "\n")
    ratios = [library / ours for row in rows if (ours := best(row, True)) and (library := best(row, False))]
    if ratios:
        print(f"library / ours {statistics.geometric_mean(ratios):.3f} (least {min(ratios):.3f}), {len(ratios)} cells")


def best(row: dict[str, Any], generated: bool) -> float:
    """The least time of generated kernels, or of the others; 0 where there are none."""
    return min((us for name, us in row["us"].items() if name.startswith("backward") == generated), default=0.0)


if __name__ == "__main__":
    main()
