"""Every candidate of a product at some sizes: what the prior would choose against the best, and the data to fit it on."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import torch

import polytile
from benchmarks.compilers import copied
from benchmarks.gpu import products
from benchmarks.gpu.products import DTYPES, Shape
from polytile.tuning import measure
from polytile.tuning.tune import Task, tune

FIRST: tuple[Shape, ...] = (
    (64, 64, 64), (256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (1, 4096, 4096), (16, 4096, 4096),
    (16, 4096, 14336), (128, 4096, 4096), (512, 512, 8192), (2048, 2048, 2048), (64, 14336, 4096), (3, 1024, 1024),
    (300, 500, 700), (1024, 4096, 1024),
)  # fmt: skip
LARGEST = 1 << 34
"""Multiply-adds of the largest random product."""


def shapes(count: int, seed: int = 0) -> list[Shape]:
    """The sizes above, then log-uniform ones; half of the random ones are multiples of 16."""
    draw = random.Random(seed)
    found = list(FIRST)
    while len(found) < count:
        sizes = [round(math.exp(draw.uniform(math.log(low), math.log(8192)))) for low in (1, 16, 16)]
        if len(found) % 2:
            sizes = [sizes[0], *[-(-size // 16) * 16 for size in sizes[1:]]]
        m, n, k = sizes
        if m * n * k <= LARGEST:
            found.append((m, n, k))
    return found


def every_candidate(dtypes: list[str], deadline: float, count: int = 300) -> list[dict[str, Any]]:
    """One row a shape until time is over: each candidate's µs, and the prior's prediction."""
    rows: list[dict[str, Any]] = []
    for number, dtype in enumerate(dtypes):
        until = time.monotonic() + (deadline - time.monotonic()) / (len(dtypes) - number)
        torch._dynamo.reset()
        polytile.reset()
        torch.backends.cuda.matmul.allow_tf32 = False
        call = torch.compile(
            copied(products.product, "every"), backend="polytile", dynamic=True, options={"tune": "off", "persist": False}
        )
        for shape in shapes(count):
            if time.monotonic() > until:
                break
            m, n, k = shape
            args = (torch.randn(m, k, device="cuda").to(DTYPES[dtype]), torch.randn(k, n, device="cuda").to(DTYPES[dtype]))
            call(*args)
            rows.append({"dtype": dtype, "shape": list(shape), **_timed(shape)})
            print(f"{dtype} {shape}: {summary(rows[-1:])}; best {rows[-1]['best']}, prior {rows[-1]['prior']}", flush=True)
    return rows


def _timed(shape: Shape) -> dict[str, Any]:
    """Times all candidates of the one compiled kernel at this shape."""
    kernel = polytile.compiler.compiled_programs()[-1].multikernels[0]
    spec = kernel.spec
    assert spec.make_args is not None
    args = tuple(spec.make_args(dict(zip(("M", "N", "K"), shape, strict=True))))
    request = kernel._request(kernel.dispatcher.key_of(*args), spec.split(args)[1], args)
    able = request.candidates
    for candidate in able:
        candidate.prepare()
    task = Task(
        request.problem,
        able,
        args,
        spec.names,
        spec.roles,
        check_accuracy=False,
        limits=measure.GPU_LIMITS,
        target=spec.target,
    )
    timed = {attempt.candidate.name: attempt.seconds * 1e6 for attempt in tune(task) if attempt.ok}
    predicted = {candidate.name: candidate.cost(request.sizes) * 1e6 for candidate in able if candidate.name in timed}
    own = {name: us for name, us in predicted.items() if name != "aten"}
    return {
        "us": timed, "predicted_us": predicted, "best": min(timed, key=lambda name: timed[name]),
        "prior": min(own, key=lambda name: own[name]) if own else "aten",
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> str:
    """How far the prior's choice among generated kernels is from the best of them, and the best of them from the library."""
    regrets, over = [], []
    for row in rows:
        own = {name: us for name, us in row["us"].items() if name != "aten"}
        if own:
            regrets.append(row["us"][row["prior"]] / min(own.values()))
            over.append(min(own.values()) / row["us"].get("aten", math.nan))
    if not regrets:
        return "no generated kernel"
    ordered = sorted(regrets)
    mean, library = (math.exp(sum(map(math.log, values)) / len(values)) for values in (regrets, over))
    p95 = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    return f"{len(rows)} shapes, regret geomean {mean:.3f}, p95 {p95:.2f}; best generated over library {library:.3f}"


__all__ = ["every_candidate", "shapes", "summary"]
