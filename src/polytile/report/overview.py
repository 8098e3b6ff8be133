"""A store in numbers: measurements, devices, versions, whose candidates win, and the time it took."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

from polytile.problem import Measurement
from polytile.report.cells import Certainty, Panel
from polytile.store.reading import Record, grouped
from polytile.store.records import Environment


@dataclass(frozen=True)
class Place:
    """A device in an environment, and how much was measured there. `facts` are those behind the device's name; `oldest` and
    `newest` are in seconds since 1970."""

    device: str
    facts: tuple[tuple[str, str], ...]
    environment: Environment
    kernels: int
    problems: int
    measurements: int
    oldest: float
    newest: float


@dataclass(frozen=True)
class Wins:
    """An origin of candidates: its candidates over all sizes, those with a time, and the number of sizes at which one of them is
    chosen."""

    origin: str
    tried: int
    timed: int
    chosen: int


@dataclass(frozen=True)
class Overview:
    """`compiling` is the compile time in seconds, counting each kernel source once; None if no measurement states it. `timing` is
    the sum of all samples in seconds. A sample is the mean of several calls, so measuring took longer."""

    measurements: int
    live: int
    places: tuple[Place, ...]
    wins: tuple[Wins, ...]
    outcomes: tuple[tuple[str, int], ...]
    certainties: tuple[tuple[Certainty, int], ...]
    compiling: float | None
    timing: float


def overview(records: Sequence[Record], panels: Sequence[Panel]) -> Overview:
    """The numbers of these records, and of the panels made of them."""
    measured = [record.measurement for record in records]
    certainties = collections.Counter(cell.certainty for panel in panels for cell in panel.cells)
    outcomes = collections.Counter(one.outcome.value for one in measured)
    return Overview(
        len(records),
        sum(entry.live for panel in panels for cell in panel.cells for entry in cell.entries),
        places(records),
        _wins(panels),
        tuple(outcomes.most_common()),
        tuple((certainty, certainties[certainty]) for certainty in Certainty if certainties[certainty]),
        _compiling(measured),
        sum(sum(one.samples) for one in measured),
    )


def places(records: Sequence[Record]) -> tuple[Place, ...]:
    """Where these records were measured."""
    groups = grouped(records, lambda one: (one.problem.device, one.environment))
    return tuple(_place(device, environment, rows) for (device, environment), rows in sorted(groups.items()))


def _place(device: str, environment: Environment, rows: Sequence[Record]) -> Place:
    problems = {record.measurement.problem for record in rows}
    facts = next((record.measurement.machine for record in rows if record.measurement.machine), ())
    times = [record.taken_at for record in rows]
    kernels = {problem.kernel for problem in problems}
    return Place(device, facts, environment, len(kernels), len(problems), len(rows), min(times), max(times))


def _wins(panels: Sequence[Panel]) -> tuple[Wins, ...]:
    cells = [cell for panel in panels for cell in panel.cells]
    tried = collections.Counter(entry.origin for cell in cells for entry in cell.entries)
    timed = collections.Counter(entry.origin for cell in cells for entry in cell.entries if entry.seconds is not None)
    chosen = collections.Counter(cell.winner.origin for cell in cells if cell.winner is not None)
    order = sorted(tried, key=lambda origin: (-chosen[origin], origin))
    return tuple(Wins(origin, tried[origin], timed[origin], chosen[origin]) for origin in order)


def _compiling(measured: Sequence[Measurement]) -> float | None:
    longest: dict[tuple[str, str], float] = {}
    for one in measured:
        if one.compile_seconds is not None:
            source = one.problem.device, one.source_hash
            longest[source] = max(longest.get(source, 0.0), one.compile_seconds)
    return sum(longest.values()) if longest else None
