"""Demo, part two: float32 `x @ y` of unknown size, kernels made for hints against sizes met at run time.

Each hint's kernel alone, polytile's pick among all of them with ATen beside them, and ATen. Each cell of polytile is
compared with the best of its column. All but the last row go through torch.compile, so Dynamo's guards cost them the
same; `ATen behind guards` is the fair bar at small sizes and plain `ATen` the one a user sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import polytile
from benchmarks.compilers import compiled, copied, decisions, forget
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table
from polytile.report.tables import micros

HINTS = (64, 256, 1024)
SIZES = (64, 96, 128, 200, 256, 384, 512, 768, 1000, 1024)
TOLERANCE = 2e-6
PICK, GUARDED, PLAIN = "pick", "ATen behind guards", "ATen"


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x: [m, k], y: [k, n]."""
    return x @ y


def operands(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, size, generator=generator), torch.randn(size, size, generator=generator)


def label(hint: int) -> str:
    return f"hint {hint}"


def tuned_for(hint: int) -> Callable[..., Tensor]:
    """The generated kernel that is best at `hint`, at every size: tuned there, then forced everywhere."""
    generated = {"sources": "cpp"}
    tuned = compiled(copied(matmul, f"matmul_tuned_{hint}"), "polytile", hints=[hint], options=generated)
    tuned(*operands(hint))
    best = decisions(polytile.explain(tuned, *operands(hint)))[-1]["candidate"]
    alone = copied(matmul, f"matmul_alone_{hint}")
    return compiled(alone, "polytile", hints=[hint], options={**generated, "force": best})


def candidates(backend: str) -> dict[str, Callable[..., Tensor]]:
    """Everything that a column compares, by row name."""
    made: dict[str, Callable[..., Tensor]] = {}
    if backend == "polytile":
        made = {label(hint): tuned_for(hint) for hint in HINTS}
    made[PICK] = compiled(copied(matmul, "matmul_pick"), backend, hints=list(HINTS))
    made[GUARDED] = compiled(copied(matmul, "matmul_guarded"), "eager")
    made[PLAIN] = matmul
    return made


def checked(name: str, function: Callable[..., Tensor], size: int) -> None:
    """Raises AssertionError where the product is further from float64 than float32 sums of `size` terms may be."""
    x, y = operands(size)
    exact = x.double() @ y.double()
    off = float((function(x, y).double() - exact).abs().max() / exact.abs().max())
    assert off <= TOLERANCE, f"{name} at {size}³ is {off:.1e} off float64 (relative); {TOLERANCE:.0e} is allowed."


def matrix(backend: str, seconds: float) -> tuple[dict[int, Comparison], list[dict[str, Any]]]:
    """Checks and times every row at every size; the decisions of polytile's pick beside it."""
    forget()
    rows = candidates(backend)
    for size in SIZES:
        for name, function in rows.items():
            checked(name, function, size)
    found = {}
    for size in SIZES:
        x, y = operands(size)
        calls = {name: functools.partial(function, x, y) for name, function in rows.items()}
        found[size] = compare(calls, seconds=seconds)
    chosen = []
    if backend == "polytile":
        chosen = decisions(polytile.explain(rows[PICK], *operands(SIZES[0])))
    return found, chosen


def table(backend: str, found: dict[int, Comparison]) -> Table:
    """Rows: hints, the pick, ATen; columns: sizes; below, the pick over the best of its column."""
    names = list(found[SIZES[0]].timings)
    titles = {PICK: f"{backend}, hints {', '.join(map(str, HINTS))}"}
    body: list[tuple[Any, ...]] = [
        (titles.get(name, name), *(found[size][name].low for size in SIZES)) for name in names
    ]
    behind = [name for name in names if name != PLAIN]
    best = {size: min(found[size][name].low for name in behind) for size in SIZES}
    against_best = {size: found[size][PICK].low / best[size] for size in SIZES}
    against_aten = {size: found[size].ratio(PICK, GUARDED) for size in SIZES}
    body.append(("pick / best of column", *(f"{against_best[size]:.2f}" for size in SIZES)))
    body.append(("ATen behind guards / pick", *(f"{against_aten[size]:.2f}" for size in SIZES)))
    notes = [
        f"µs a call, Dynamo's guards included but for the row `{PLAIN}`. Pick over the best of its column: geomean "
        f"{geomean(against_best.values()):.3f}, worst {max(against_best.values()):.2f}; ATen behind guards over pick: "
        f"geomean {geomean(against_aten.values()):.2f}. {disturbance(found.values())}"
    ]
    return Table.from_rows(
        "`x @ y`, float32, square: hint compiled for (rows) × size at run time (columns)",
        ["kernel", *(Column(str(size), micros) for size in SIZES)],
        body,
        notes,
    )


def run(backend: str, quick: bool = False) -> tuple[list[Table], dict[str, Any]]:
    """Tables to show and results to keep."""
    found, chosen = matrix(backend, 0.2 if quick else 2.0)
    tables = [table(backend, found)]
    if chosen:
        body = [(row["sizes"], row["candidate"], row["provenance"], row["seconds"]) for row in chosen]
        columns: list[Column | str] = ["sizes", "candidate", "chosen by", Column("µs when chosen", micros)]
        tables.append(Table.from_rows("`x @ y`: what polytile picked", columns, body, folded=True))
    kept = {str(size): comparison.as_json() for size, comparison in found.items()}
    return tables, {"hints": list(HINTS), "sizes": kept, "decisions": chosen}


__all__ = ["run"]
