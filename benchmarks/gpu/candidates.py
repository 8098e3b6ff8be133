"""Every candidate of a product at some sizes: what the prior would choose against the best, and the data to fit it on."""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.compilers import copied
from benchmarks.gpu import products
from benchmarks.gpu.grid import Cells
from benchmarks.gpu.products import DTYPES, Case, Shape
from benchmarks.gpu.products_ahead import Compiled
from benchmarks.timing import geomean
from polytile.candidates.candidate import Candidate
from polytile.dispatch.links.prior import shortlist
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.request import Request
from polytile.tuning.limits import GPU_LIMITS
from polytile.tuning.task import Task
from polytile.tuning.tune import tune

FIRST: tuple[Shape, ...] = (
    (64, 64, 64), (256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (1, 4096, 4096), (16, 4096, 4096),
    (16, 4096, 14336), (128, 4096, 4096), (512, 512, 8192), (2048, 2048, 2048), (64, 14336, 4096), (3, 1024, 1024),
    (300, 500, 700), (1024, 4096, 1024),
)  # fmt: skip
LARGEST = 1 << 34
"""Multiply-adds of the largest random product."""
SHORTLIST = 3
"""How many of the prior's ranking are measured in the table of regrets."""
ROWS, OF_A_BATCH = 64, 1024
"""The most rows of thin products; the largest size of a batch's matrices."""


@dataclass(frozen=True)
class Tried:
    """A product whose every candidate is timed: the case of `products` named (part, name), at random sizes of which each is drawn
    from its range in `most`."""

    part: str
    name: str
    dtypes: tuple[str, ...]
    most: Shape = (8192, 8192, 8192)
    batch: int = 1

    @property
    def function(self) -> str:
        return f"candidates: {self.name}"

    @property
    def case(self) -> Case:
        return next(case for case in products.cases(256) if (case.part, case.name) == (self.part, self.name))


TRIED = (
    Tried("square", "x @ y", ("bf16", "fp32", "tf32")),
    Tried("fp8", "fp8, scaled by rows", ("fp8",)),
    Tried("int8", "int8 × int8, scaled", ("int8",)),
    Tried("thin", "linear", ("bf16",), (ROWS, 16384, 16384)),
    Tried("batch", "batches", ("bf16", "fp32"), (OF_A_BATCH,) * 3, products.BATCH),
)


def shapes(count: int, most: Shape = (8192, 8192, 8192), seed: int = 0) -> list[Shape]:
    """The sizes above as far as they are within `most`, then log-uniform ones; half of the random ones are multiples of 16."""
    draw = random.Random(seed)
    found = [shape for shape in FIRST if all(size <= limit for size, limit in zip(shape, most, strict=True))]
    while len(found) < count:
        lows = zip((1, 16, 16), most, strict=True)
        sizes = [round(math.exp(draw.uniform(math.log(low), math.log(high)))) for low, high in lows]
        if len(found) % 2:
            sizes = [sizes[0], *[-(-size // 16) * 16 for size in sizes[1:]]]
        m, n, k = sizes
        if m * n * k <= LARGEST:
            found.append((m, n, k))
    return found


class Trials:
    """A product in one type, compiled once: its candidates at any sizes, timed without being chosen."""

    def __init__(self, dtype: str, tried: Tried = TRIED[0]) -> None:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        case, options = tried.case, {"tune": "off", "persist": False}
        made = functools.partial(_made, case, dtype)
        self._compiled, self._traced = Compiled(copied(case.run, "every"), made, case.traced, options), case.traced
        self.kernel, _ = self._first_call(case.traced)

    def request(self, shape: Shape) -> Request:
        """What the selector would be asked at this shape, on dense operands."""
        spec = self.kernel.spec
        assert spec.make_args is not None
        args = tuple(spec.make_args(dict(zip(spec.size_names, self._first_call(shape)[1], strict=True))))
        return self.kernel.request(self.kernel.dispatcher.key_of(*args), spec.ints_of(args), args)

    def _first_call(self, shape: Shape) -> tuple[MultiKernel, list[int]]:
        [calls] = self._compiled.calls(self._traced, [shape])
        return calls[0]

    def ask(self, sizes: Iterable[int]) -> None:
        """Has compiled in the background what would be measured at these squares."""
        for n in sizes:
            for candidate in shortlist(self.request((n, n, n))):
                candidate.prepare()

    def named(self, request: Request, names: Collection[str]) -> list[Candidate]:
        """The candidates of these names as they are at the sizes of `request`, tried there or not."""
        args, spec = request.args or (), self.kernel.spec
        tensors, ints = spec.tensors_of(args), spec.ints_of(args)
        facts = spec.keys.facts_for_code(ints, [tensor.data_ptr() for tensor in tensors])
        return [candidate.specialise(facts) for candidate in self.kernel.candidates if candidate.name in names]

    def us(self, request: Request, chosen: Sequence[Candidate]) -> dict[str, float]:
        """Kernel µs of those among `chosen` that run."""
        for candidate in chosen:
            candidate.prepare()
        return kernel_us(request, chosen)


def _made(case: Case, dtype: str, m: int, n: int, k: int) -> tuple[Any, ...]:
    return case.make(m, n, k, DTYPES[dtype])


def kernel_us(request: Request, chosen: Sequence[Candidate]) -> dict[str, float]:
    """Kernel µs of those among `chosen` that run, by name; results are not checked."""
    assert request.args is not None
    spec = request.spec
    task = Task(
        request.problem,
        tuple(chosen),
        request.args,
        spec.names,
        spec.roles,
        check_accuracy=False,
        limits=GPU_LIMITS,
        target=spec.target,
    )
    return {attempt.candidate.name: attempt.seconds * 1e6 for attempt in tune(task) if attempt.ok}


def every_candidate(dtype: str, deadline: float, cells: Cells, count: int, tried: Tried) -> None:
    """A cell a shape until time is over: each candidate's µs, what the prior predicted, and what its first would be."""
    wanted = [shape for shape in shapes(count, tried.most) if not cells.has(tried.function, dtype, shape)]
    trials = Trials(dtype, tried) if wanted and time.monotonic() < deadline else None
    for shape in wanted:
        if trials is None or time.monotonic() > deadline:
            break
        request = trials.request(shape)
        timed = trials.us(request, request.candidates)
        predicted = {c.name: c.cost(request.sizes) * 1e6 for c in request.candidates if c.name in timed}
        row = {
            "function": tried.function, "part": "candidates", "dtype": dtype, "shape": list(shape), "us": timed,
            "predicted_us": predicted, "shortlist": [c.name for c in shortlist(request)], "batch": tried.batch,
        }  # fmt: skip
        cells.add(row)
        print(f"{tried.name} {dtype} {shape}: {verdict([row])}", flush=True)


def regrets(row: dict[str, Any]) -> list[float]:
    """The measured time of each candidate over the best one's, in the order of their predictions."""
    best, predicted = min(row["us"].values()), row["predicted_us"]
    return [row["us"][name] / best for name in sorted(predicted, key=lambda name: predicted[name])]


def verdict(rows: Iterable[dict[str, Any]]) -> str:
    """The prior alone, and after measuring the first few of its ranking, against the best of all candidates, the libraries'
    among them; the best that is generated against ATen."""
    rankings = [(row, regrets(row)) for row in rows if row["us"]]
    if not rankings:
        return "nothing ran"
    over = [min(own) / row["us"]["aten"] for row, _ in rankings if "aten" in row["us"] and (own := generated(row["us"]))]
    text = f"{len(rankings)} shapes, regret of the first {spread([found[0] for _, found in rankings])}"
    text += f"; best of {SHORTLIST} {spread([min(found[:SHORTLIST]) for _, found in rankings])}"
    return text + (f"; best generated over ATen {geomean(over):.3f}" if over else "")


def generated(us: dict[str, float]) -> list[float]:
    """The times of the candidates that are no library's."""
    return [time for name, time in us.items() if not name.startswith(("aten", "cublaslt"))]


def spread(ratios: Sequence[float]) -> str:
    ordered = sorted(ratios)
    p95 = ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)]
    return f"geomean {geomean(ordered):.3f}, p95 {p95:.2f}, worst {ordered[-1]:.2f}"


__all__ = ["TRIED", "Tried", "Trials", "every_candidate", "generated", "regrets", "shapes", "verdict"]
