"""Measurements without a store, for reports."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polytile.facts import Divisible, Fact, Threads
from polytile.problem import Config, Measurement, Outcome, Problem, Resources
from polytile.report.cells import Panel, panels
from polytile.report.contents import Held, Report, Source, report
from polytile.store.reading import Record
from polytile.store.records import DISTURBED, TERM

DIGEST = "228d962c0c6a657c"
_count = itertools.count()


def record(
    candidate: str = "looped t1",
    seconds: float = 1e-5,
    sizes: Sequence[tuple[str, int]] = (("M", 64), ("N", 512)),
    outcome: Outcome = Outcome.OK,
    kernel: str = DIGEST,
    device: str = "cpu-avx512-2t-x",
    torch: str = "2.13",
    origin: str = "cpp",
    detail: str = "",
    spread: float = 0.0,
    registers: int | None = None,
    predicted: float | None = None,
    disturbed: float = 0.0,
    terms: Mapping[str, float] = MappingProxyType({}),
) -> Record:
    """Twelve samples that differ by `spread`, relative, from the least to the largest; `terms` of the prediction."""
    facts: list[Fact] = [Divisible(name) for name, size in sizes if size % 16 == 0]
    problem = Problem("loop", kernel, tuple(sizes), ("float32",), (*facts, Threads(2)), device)
    samples = tuple(seconds * (1 + spread * i / 11) for i in range(12)) if outcome is Outcome.OK else ()
    number = next(_count)
    measurement = Measurement(
        problem, candidate, Config.of(threads=1), "a" * 16, outcome, samples, 1e-7, 0.5, detail,
        environment=(("torch", torch),), origin=origin, predicted=predicted or seconds, resources=Resources(registers),
        state=((DISTURBED, disturbed), *((TERM + name, value) for name, value in terms.items())),
    )  # fmt: skip
    return Record(f"{number:024x}", 1.7e9 + number, measurement)


def panels_of(*records: Record) -> tuple[Panel, ...]:
    return panels(records, lambda problem: f"{problem.family}_{problem.kernel[:8]}")


def report_of(*records: Record, before: Sequence[Record] = (), name: str = "") -> Report:
    """A report on these records; `name` is that of every kernel, if it is not ""."""
    earlier = Held(Source("before.sqlite3"), before) if before else None
    named = Held(Source("store.sqlite3"), records)
    return report(named, earlier, lambda problem: name or f"{problem.family}_{problem.kernel[:8]}", 1.7e9, "polytile report")
