"""Matrix products from one row to a thousand against torch.mm: `python -m benchmarks.matmul`.

One dynamic compile for a dtype and a number of threads, twelve numbers of rows, four weights, in turns with eager's own call. The
weights are what the call is given ("row-major", "linear"), or parameters of a module that stay as they are ("constant", in a
linear layer's layout "constant-linear"), for each of which Dynamo compiles anew.
With `--parts epilogue`: relu(a @ b) in several runs (`matmul_epilogue.py`).
Dynamo's share of a call is left out (`direct.py`). A run of a part of the suite replaces those cells of the results file.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import matmul_epilogue, record
from benchmarks.command import Command
from benchmarks.compilers import forget
from benchmarks.direct import Recorded
from benchmarks.loops import chosen
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime import compile, cpu

ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WEIGHTS = ((1024, 1024), (4096, 1024), (1024, 4096), (4096, 11008))
BANDS = (("M 1", 1, 1), ("M 2–8", 2, 8), ("M 9–32", 9, 32), ("M 33–128", 33, 128), ("M above", 129, 1 << 30))
OWN, PEER = "polytile", "eager"
SETTLED = 30.0  # seconds to wait for kernels that are still being compiled beside


def mm(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x, w)


def int_mm(x: Tensor, w: Tensor) -> Tensor:
    return torch._int_mm(x, w)


def _bytes(rows: int, columns: int) -> Tensor:
    return torch.randint(-128, 128, (rows, columns), dtype=torch.int8)


def _bf16(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns).bfloat16()


@dataclass(frozen=True)
class Kind:
    """A dtype of the suite. `tolerance`: the largest difference from eager's result, relative to its largest element."""

    function: Callable[[Tensor, Tensor], Tensor]
    matrix: Callable[[int, int], Tensor]
    tolerance: float


KINDS = {
    "float32": Kind(mm, torch.randn, 3e-5),
    "bfloat16": Kind(mm, _bf16, 2.0**-7),
    "int8": Kind(int_mm, _bytes, 0.0),
}
CONSTANT, CONSTANT_LINEAR = "constant", "constant-linear"
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda w: w,
    "linear": lambda w: w.t().contiguous().t(),
    CONSTANT: lambda w: w,
    CONSTANT_LINEAR: lambda w: w.t().contiguous().t(),
}
"""How the weights [K, N] lie: row by row, or with k contiguous, as a linear layer keeps them; and whether they are constant."""


KEPT = (CONSTANT, CONSTANT_LINEAR)


class Constant(torch.nn.Module):
    """A product by a weight that the module owns."""

    weight: Tensor

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


@dataclass(frozen=True)
class Cell:
    """One product: M rows, K × N weights."""

    dtype: str
    layout: str
    threads: int
    m: int
    k: int
    n: int
    direct: Comparison
    decisions: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.layout} t{self.threads} {self.m}x{self.k}x{self.n}"

    @property
    def ratio(self) -> float:
        return self.direct.ratio(OWN, PEER)


def run(
    dtype: str, layout: str, threads: int, rows: Sequence[int], weights: Sequence[tuple[int, int]], seconds: float
) -> list[Cell]:
    """Every cell of one dtype, layout and number of threads, under one dynamic compile."""
    torch.set_num_threads(threads)
    forget()
    kind, cells = KINDS[dtype], []
    modules = {size: Constant(kind.function, LAYOUTS[layout](kind.matrix(*size))) for size in weights if layout in KEPT}
    recorded = {size: Recorded(module, OWN) for size, module in modules.items()} or Recorded(kind.function, OWN)
    for m in sorted(rows, key=lambda m: m == 1):  # a size of 1 gets a graph of its own, after the general one
        for k, n in weights:
            x = kind.matrix(m, k)
            w = modules[k, n].weight if modules else LAYOUTS[layout](kind.matrix(k, n))
            made = recorded[k, n] if isinstance(recorded, dict) else recorded
            call = checked(made.direct(x) if modules else made.direct(x, w), kind.function(x, w), kind.tolerance)
            compile.settle(SETTLED)
            direct = compare({OWN: call, PEER: functools.partial(kind.function, x, w)}, seconds=seconds)
            cells.append(Cell(dtype, layout, threads, m, k, n, direct, chosen(made)))
    return sorted(cells, key=lambda cell: (cell.m, weights.index((cell.k, cell.n))))


def checked(call: Callable[[], Any], right: Tensor, tolerance: float) -> Callable[[], Any]:
    """The direct call, whose result has been compared with eager's; raises AssertionError where it is off."""
    off = float((call().double() - right.double()).abs().max() / right.double().abs().max().clamp(min=1e-30))
    assert off <= tolerance, f"The result {tuple(right.shape)} of {right.dtype} is {off:.1e} off eager's."
    return call


def table(cells: Sequence[Cell]) -> Table:
    """Ratios of the cells of one dtype, layout and number of threads: weights by rows."""
    rows = sorted({cell.m for cell in cells})
    found = {(cell.k, cell.n, cell.m): cell.ratio for cell in cells}
    body: list[tuple[Any, ...]] = []
    for k, n in dict.fromkeys((cell.k, cell.n) for cell in cells):
        ratios = [found[k, n, m] for m in rows]
        body.append((f"{k}×{n}", *ratios, geomean(ratios)))
    body.append(("geomean", *[geomean(row[i] for row in body) for i in range(1, len(rows) + 2)]))
    least = min(cells, key=lambda cell: cell.ratio)
    first = cells[0]
    title = f"torch.mm over polytile, {first.dtype}, weights {first.layout}, {first.threads} threads"
    columns: list[Column | str] = ["K×N", *(Column(f"M={m}", ratio) for m in rows), Column("geomean", ratio)]
    notes = [f"Least: {least.ratio:.2f}, {least.m}×{least.k}×{least.n}.", disturbance(cell.direct for cell in cells)]
    return Table.from_rows(title, columns, body, notes)


def bands(groups: Sequence[Sequence[Cell]]) -> Table:
    """The geomean and the least ratio in each band of rows, for each dtype, layout and number of threads."""
    columns: list[Column | str] = ["dtype", "weights", "threads"]
    for name, _, _ in BANDS:
        columns += [Column(name, ratio), Column("least", ratio)]
    body = []
    for cells in groups:
        row: list[Any] = [cells[0].dtype, cells[0].layout, str(cells[0].threads)]
        for _, low, high in BANDS:
            found = [cell.ratio for cell in cells if low <= cell.m <= high]
            row += [geomean(found), min(found)] if found else [None, None]
        body.append(tuple(row))
    return Table.from_rows("Time of torch.mm over polytile's, without Dynamo's share", columns, body)


def write(cells: Sequence[Cell]) -> None:
    """Adds the cells to benchmarks/results/matmul.json, in place of earlier ones of the same name."""
    found = {
        cell.name: {"ratio": round(cell.ratio, 4), "candidates": list(cell.decisions), **cell.direct.as_json()}
        for cell in cells
    }
    record.add("matmul", "cells", found)


def size_of(text: str) -> tuple[int, int]:
    k, _, n = text.partition("x")
    return int(k), int(n)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--parts", nargs="*", choices=("products", "epilogue"), default=["products", "epilogue"])
    parser.add_argument("--runs", type=int, default=3, help="processes that time the products with an epilogue, in turn")
    parser.add_argument("--dtypes", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--threads", nargs="*", type=int, default=sorted({1, torch.get_num_threads()}))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--weights", nargs="*", type=size_of, default=list(WEIGHTS), help="K and N, such as 4096x1024")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long to measure each cell")
    parser.add_argument("--name", default=cpu.cpu().model, help="under which the runs of the epilogue are kept")
    given = parser.parsed()
    if "products" in given.parts:
        products(given)
    if "epilogue" in given.parts:
        matmul_epilogue.show_runs(given.runs, max(given.threads), given.seconds, given.name, given.json)


def products(given: argparse.Namespace) -> None:
    """Plain products of each dtype, layout and number of threads."""
    groups = []
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=64):  # a module is compiled for each weight
        for dtype in given.dtypes:
            for layout in given.layouts:
                for threads in given.threads:
                    groups.append(run(dtype, layout, threads, given.rows, given.weights, given.seconds))
                    show(table(groups[-1]))
                    if given.json:
                        write(groups[-1])
    show(bands(groups))


if __name__ == "__main__":
    main()
