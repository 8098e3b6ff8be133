"""`polytile replay`: the selector against what was measured, with nothing compiled and nothing timed."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from polytile.cli.kernels import names_beside, names_of
from polytile.cli.plain import sizes_text
from polytile.dispatch.replay import replay
from polytile.errors import StoreError
from polytile.problem import Problem
from polytile.report import Column, Table
from polytile.report.tables import count, micros, ratio
from polytile.store.place import place_of
from polytile.store.reading import Record
from polytile.tuning.replay import Matrix, Report, matrices


@dataclass(frozen=True)
class Replayed:
    """A kernel's measurements and what the selector made of them."""

    name: str
    matrix: Matrix
    report: Report


def run(named: str, records: Sequence[Record], kernel: str, shuffle: int | None) -> list[Replayed]:
    """Each kernel that has `kernel` in its name, replayed on what is held at the place `named`. Raises StoreError where there is
    nothing to choose between."""
    measured = matrices(records)
    known = names_beside(place_of(named))
    names = [names_of(matrix.problems[0], known) for matrix in measured]
    replayed = [
        Replayed(each[0], matrix, replay(matrix, _order(matrix, shuffle)))
        for matrix, each in zip(measured, names, strict=True)
        if len(matrix.names) > 1 and any(kernel in name for name in each)
    ]
    if not replayed:
        which = f" of a kernel called {kernel!r}" if kernel else ""
        raise StoreError(f"{named} has no two candidates{which} to choose between; measure with POLYTILE_TUNE=all.")
    return replayed


def tables(kernels: Sequence[Replayed], choices: bool) -> list[Table]:
    """A line for each kernel; with `choices`, then a table of each kernel's choices."""
    columns: list[Column | str] = [
        "kernel", Column("problems", count), Column("candidates", count), Column("measured", count), Column("of", count),
        Column("× best", ratio), Column("p95", ratio), Column("worst", ratio), "worst at", "grounds",
    ]  # fmt: skip
    rows = [_row(kernel.name, len(kernel.matrix.names), kernel.report) for kernel in kernels]
    notes = [
        f"{kernel.name}: {kernel.matrix.missing()} of {len(kernel.matrix.names) * len(kernel.matrix.problems)} pairs of problem "
        "and candidate were not measured and count as unable to run."
        for kernel in kernels
        if kernel.matrix.missing()
    ]
    if len(kernels) > 1:
        everything = Report(
            tuple(choice for kernel in kernels for choice in kernel.report.choices),
            sum(kernel.report.measured for kernel in kernels),
            sum(kernel.report.size for kernel in kernels),
        )
        rows.append(_row("all", None, everything))
    made = [Table.from_rows("The selector on what was measured", columns, rows, notes)]
    return made + ([_choices(kernel) for kernel in kernels] if choices else [])


def _order(matrix: Matrix, shuffle: int | None) -> list[Problem]:
    problems = list(matrix.problems)
    if shuffle is not None:
        random.Random(shuffle).shuffle(problems)
    return problems


def _row(name: str, candidates: int | None, report: Report) -> tuple[object, ...]:
    worst = report.worst
    grounds = collections.Counter(choice.grounds for choice in report.choices)
    return (
        name, len(report.choices), candidates, report.measured, report.size, report.regret, report.quantile(0.95),
        worst.regret, f"{sizes_text(worst.problem.sizes)}: {worst.candidate}" if worst.regret > 1 else "",
        ", ".join(f"{number} {word}" for word, number in grounds.most_common()),
    )  # fmt: skip


def _choices(kernel: Replayed) -> Table:
    columns: list[Column | str] = [
        "sizes", "chosen", "grounds", Column("µs", micros), "fastest", Column("µs", micros), Column("× best", ratio)
    ]  # fmt: skip
    rows = [
        (sizes_text(c.problem.sizes), c.candidate, c.grounds, c.seconds if math.isfinite(c.seconds) else None, c.best,
         c.best_seconds, c.regret)
        for c in kernel.report.choices
    ]  # fmt: skip
    return Table.from_rows(kernel.name, columns, rows)
