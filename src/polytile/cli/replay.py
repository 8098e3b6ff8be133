"""`polytile replay`: the selector against what was measured, with nothing compiled and nothing timed."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Sequence

from polytile.cli.plain import sizes_text
from polytile.errors import StoreError
from polytile.multikernel.replay import replay
from polytile.problem import Problem
from polytile.report import Column, Table
from polytile.report.tables import count, micros, ratio
from polytile.store import transfer
from polytile.store.place import Server, place_of
from polytile.store.reading import Record, records
from polytile.tuning.replay import Matrix, Report, matrices

SQLITE = b"SQLite format 3\0"


def read(named: str) -> list[Record]:
    """The measurements of a store or of an exported file, oldest first. Raises StoreError where it is neither."""
    place = place_of(named)
    if isinstance(place, Server) or not place.is_file():
        return records(place)
    with place.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            return records(place)
    found = transfer.parsed(place).records
    return sorted(found, key=lambda record: (record.taken_at, record.uid))


def run(named: str, kernel: str, shuffle: int | None) -> list[tuple[Matrix, Report]]:
    """Each kernel's matrix and what the selector made of it. Raises StoreError where there is nothing to choose between."""
    found = [
        (matrix, replay(matrix, _order(matrix, shuffle)))
        for matrix in matrices(read(named))
        if len(matrix.names) > 1 and kernel in name_of(matrix)
    ]
    if not found:
        which = f" of a kernel called {kernel!r}" if kernel else ""
        raise StoreError(
            f"{named} has no two candidates{which} to choose between; measure with POLYTILE_TUNE=all."
        )
    return found


def tables(found: Sequence[tuple[Matrix, Report]], choices: bool) -> list[Table]:
    """A line for each kernel; with `choices`, then a table of each kernel's choices."""
    columns: list[Column | str] = [
        "kernel", Column("problems", count), Column("candidates", count), Column("measured", count), Column("of", count),
        Column("× best", ratio), Column("p95", ratio), Column("worst", ratio), "worst at", "grounds",
    ]  # fmt: skip
    rows = [_row(name_of(matrix), len(matrix.names), report) for matrix, report in found]
    notes = [
        f"{name_of(matrix)}: {matrix.missing()} of {len(matrix.names) * len(matrix.problems)} pairs of problem and candidate "
        "were not measured and count as unable to run."
        for matrix, _ in found
        if matrix.missing()
    ]
    if len(found) > 1:
        everything = Report(
            tuple(choice for _, report in found for choice in report.choices),
            sum(report.measured for _, report in found),
            sum(report.size for _, report in found),
        )
        rows.append(_row("all", None, everything))
    made = [Table.of("The selector on what was measured", columns, rows, notes)]
    return made + ([_choices(matrix, report) for matrix, report in found] if choices else [])


def name_of(matrix: Matrix) -> str:
    problem = matrix.problems[0]
    return f"{problem.family}_{problem.kernel[:8]}"


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


def _choices(matrix: Matrix, report: Report) -> Table:
    columns: list[Column | str] = [
        "sizes", "chosen", "grounds", Column("µs", micros), "fastest", Column("µs", micros), Column("× best", ratio)
    ]  # fmt: skip
    rows = [
        (sizes_text(c.problem.sizes), c.candidate, c.grounds, c.seconds if math.isfinite(c.seconds) else None, c.best,
         c.best_seconds, c.regret)
        for c in report.choices
    ]  # fmt: skip
    return Table.of(name_of(matrix), columns, rows)


__all__ = ["name_of", "read", "run", "tables"]
