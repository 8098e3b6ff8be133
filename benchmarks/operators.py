"""Single operators whose kernels in ATen are written by hand: `python -m benchmarks.operators`.

Scans, windows, pads, shuffles, upsampling: what generated loops find hardest. One dynamic compile for each, against eager on the
same inputs, in turns: of calls without Dynamo's share, and of training steps (forward, backward) with everything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import compiled, copied, forget
from benchmarks.direct import Recorded
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio

Shape = tuple[int, ...]
ROWS: tuple[Shape, ...] = ((16, 64), (128, 300), (1024, 1024), (4, 65536))
IMAGES: tuple[Shape, ...] = ((1, 16, 16, 16), (4, 64, 32, 32), (8, 64, 64, 64))


def cummax(x: Tensor) -> Tensor:
    return torch.cummax(x, -1).values


def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)


def logcumsumexp(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, -1)


def erf64(x: Tensor) -> Tensor:
    return torch.erf(x)


def bilinear(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="bilinear")


def nearest(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0)


def adaptive(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 7)


def shuffle(x: Tensor) -> Tensor:
    return F.pixel_shuffle(x, 2)


def mirrored(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="reflect")


def group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x, 8)


@dataclass(frozen=True)
class Case:
    """A row of the suite: a function of one tensor, whose shapes these are. `training`: a gradient is asked for too."""

    name: str
    function: Callable[[Tensor], Tensor]
    shapes: tuple[Shape, ...]
    training: bool = False
    dtype: torch.dtype = torch.float32
    layout: torch.memory_format = torch.contiguous_format

    def input(self, shape: Shape) -> Tensor:
        return torch.randn(shape, dtype=self.dtype).contiguous(memory_format=self.layout).requires_grad_(self.training)


SUITE: tuple[Case, ...] = (
    Case("cummax", cummax, ROWS),
    Case("cumsum", cumsum, ROWS),
    Case("logcumsumexp", logcumsumexp, ROWS[:3]),
    Case("erf, float64", erf64, ROWS, dtype=torch.float64),
    Case("bilinear ×2", bilinear, IMAGES),
    Case("nearest ×2", nearest, IMAGES),
    Case("adaptive average 7×7", adaptive, IMAGES),
    Case("pixel shuffle", shuffle, IMAGES),
    Case("mirrored pad", mirrored, IMAGES),
    Case("bilinear ×2, training", bilinear, IMAGES, training=True),
    Case("nearest ×2, training", nearest, IMAGES, training=True),
    Case("adaptive average 7×7, training", adaptive, IMAGES, training=True),
    Case("GroupNorm, channels last, training", group_norm, IMAGES, training=True, layout=torch.channels_last),
)


@dataclass(frozen=True)
class Cell:
    shape: Shape
    times: Comparison

    @property
    def ratio(self) -> float:
        return self.times.ratio("polytile", "eager")


def step(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A training step: the gradient of `x` for a gradient of ones."""
    y = function(x)
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]


def run_case(case: Case, seconds: float) -> list[Cell]:
    """Compiles one function, checks it against eager and times it at every shape."""
    forget()
    recorded = None if case.training else Recorded(case.function, "polytile")
    made = compiled(copied(case.function, case.function.__name__), "polytile") if recorded is None else None
    cells = []
    for shape in case.shapes:
        x = case.input(shape)
        eager: Callable[[], Any] = functools.partial(case.function, x)
        own: Callable[[], Any]
        if recorded is None:
            assert made is not None
            eager, own = functools.partial(step, case.function, x), functools.partial(step, made, x)
        else:
            own = recorded.direct(x)
        torch.testing.assert_close(own(), eager(), rtol=1e-4, atol=1e-4)
        cells.append(Cell(shape, compare({"polytile": own, "eager": eager}, seconds=seconds)))
    return cells


def table(results: dict[str, list[Cell]]) -> Table:
    columns: list[Column | str] = ["operator", "shape", Column("µs", micros), Column("eager µs", micros), Column("ratio", ratio)]
    rows = [
        (name, "×".join(map(str, cell.shape)), cell.times["polytile"].low, cell.times["eager"].low, cell.ratio)
        for name, cells in results.items()
        for cell in cells
    ]
    found = [cell for cells in results.values() for cell in cells]
    ratios = [cell.ratio for cell in found]
    notes = [f"Time of eager over polytile's: geomean {geomean(ratios):.2f}, least {min(ratios):.2f}."]
    notes.append(disturbance(cell.times for cell in found))
    title = f"Single operators against eager, {torch.get_num_threads()} threads, one dynamic compile"
    return Table.from_rows(title, columns, rows, notes)


def as_json(results: dict[str, list[Cell]]) -> dict[str, Any]:
    return {name: {"x".join(map(str, c.shape)): c.times.as_json() for c in cells} for name, cells in results.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--only", nargs="*", default=[], help="operators whose names contain one of these")
    parser.add_argument("--threads", type=int, help="threads for both; torch's own number unless given")
    parser.add_argument("--seconds", type=float, default=0.4, help="how long to measure each cell")
    given = parser.parsed(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    results = {}
    for case in SUITE:
        if not given.only or any(word in case.name for word in given.only):
            with torch.set_grad_enabled(case.training):
                results[case.name] = run_case(case, given.seconds)
    show(table(results))
    if given.json:
        record.add("operators", f"threads {torch.get_num_threads()}", as_json(results))


if __name__ == "__main__":
    main()
