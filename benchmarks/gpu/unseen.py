"""Shapes that nobody measured: what the prior chooses against the best of all candidates, measured exhaustively.

A shape whose regime another shape has met before counts once: its kernel is that shape's."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import torch

import polytile
from benchmarks.compilers import copied
from benchmarks.gpu.functions import DTYPES, TRACED, Function
from benchmarks.timing import geomean
from polytile.dispatch.multikernel import MultiKernel
from polytile.tuning.limits import GPU_LIMITS
from polytile.tuning.task import Task
from polytile.tuning.tune import tune

LARGEST = 1 << 25
"""Elements of the largest activation."""


def shapes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Log-uniform rows and columns, odd ones included."""
    draw = random.Random(seed)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        m, n = (round(math.exp(draw.uniform(math.log(2), math.log(1 << 20)))) for _ in range(2))
        if m > 1 and n > 1 and 1024 <= m * n <= LARGEST:
            found.append((m, n))
    return found


def run(
    functions: list[Function], dtype: str, count: int, seconds: float, seed: int, rows: list[dict[str, Any]]
) -> None:
    """Adds a row a kernel and shape to `rows` when it is measured: the time of the prior's choice over the best candidate's."""
    deadline = time.monotonic() + seconds
    for number, function in enumerate(functions):
        torch._dynamo.reset()
        polytile.reset()
        share = time.monotonic() + (deadline - time.monotonic()) / (len(functions) - number)
        call = torch.compile(
            copied(function.run, "unseen"), backend="polytile", dynamic=True, options={"tune": "off", "persist": False}
        )
        call(*function.make(TRACED, DTYPES[dtype]))
        for shape in shapes(count, seed):
            if time.monotonic() > share:
                break
            before = {id(kernel): len(kernel.decisions) for kernel in _kernels()}
            call(*function.make(shape, DTYPES[dtype]))
            for kernel in _kernels():
                if len(kernel.decisions) > before.get(id(kernel), 0):  # else the regime is known from another shape
                    rows += _row(function, dtype, shape, kernel)
        print(function.name, *summary([row for row in rows if row["function"] == function.name]), flush=True)


def _kernels() -> list[MultiKernel]:
    return [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]


def _row(function: Function, dtype: str, shape: tuple[int, int], kernel: MultiKernel) -> list[dict[str, Any]]:
    decision = kernel.decisions[-1]
    if kernel.spec.make_args is None or decision is None:
        return []
    sizes = dict(decision.sizes)
    if set(sizes) != set(kernel.spec.size_names):
        return []  # strides of its own: made arguments would differ
    args = tuple(kernel.spec.make_args(sizes))
    ints = kernel.spec.ints_of(args)
    request = kernel.request(kernel.dispatcher.key_of(*args), ints, args)
    able = [candidate for candidate in request.candidates if candidate.origin == "triton"]
    spec = kernel.spec
    task = Task(
        request.problem,
        tuple(able),
        args,
        spec.names,
        spec.roles,
        check_accuracy=False,
        limits=GPU_LIMITS,
        target=spec.target,
    )
    timed = {a.candidate.name: a.seconds for a in tune(task) if a.ok}
    if decision.candidate not in timed:
        return []
    best = min(timed, key=lambda name: timed[name])
    return [{
        "function": function.name, "dtype": dtype, "shape": list(shape), "kernel": kernel.spec.name, "chosen": decision.candidate,
        "best": best, "us": timed[decision.candidate] * 1e6, "best_us": timed[best] * 1e6,
        "regret": timed[decision.candidate] / timed[best], "candidates_us": {name: t * 1e6 for name, t in timed.items()},
    }]  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """How many rows, and of their regrets the geometric mean, the 95th percentile and the worst."""
    if not rows:
        return "0", "", "", ""
    regrets = sorted(row["regret"] for row in rows)
    p95 = regrets[math.ceil(0.95 * len(regrets)) - 1]
    return str(len(rows)), f"{geomean(regrets):.3f}", f"{p95:.3f}", f"{regrets[-1]:.2f}"


__all__ = ["run", "shapes", "summary"]
