"""The contents of a store by kernel and sizes: the candidates' times, which of them would run, and how certain that is.

A Panel is one kernel on one device in one environment; a Cell is one of its problems. Choices follow tuning/decide.py, as in
`polytile why`, with the current options.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polytile.facts import Divisible, PowerOfTwo
from polytile.problem import Problem, Resources
from polytile.report.rates import Work, stated_work
from polytile.runtime.device import kind_of
from polytile.store.reading import Record, grouped
from polytile.store.records import LIVE, Environment
from polytile.tuning.decide import Entrant, Score, doubtful, equals, noise_band, pick
from polytile.tuning.standings import Standing, standings

Sizes = tuple[tuple[str, int], ...]


class Certainty(enum.Enum):
    """How far a cell's choice can be trusted."""

    CLEAR = "clear"
    TIE = "within noise"
    LOAD = "measured under load"
    DOUBT = "in doubt"
    ALONE = "the only one that ran"
    NONE = "none ran"


@dataclass(frozen=True)
class Entry:
    """A candidate at one size: its score, and facts of its newest measurement.

    `seconds` per call is None if there is no time, or the clock was too coarse for it. `measured` counts all its measurements,
    `live` those that timed a program's own calls.
    """

    candidate: str
    config: str
    origin: str
    source: str
    score: Score
    seconds: float | None
    predicted: float | None
    resources: Resources
    max_error: float | None
    compile_seconds: float | None
    detail: str
    measured: int
    live: int


@dataclass(frozen=True)
class Cell:
    """One problem: its candidates, fastest first and those without a time last, and the position of the one that runs."""

    sizes: Sizes
    entries: tuple[Entry, ...]
    chosen: int | None
    certainty: Certainty
    rivals: tuple[str, ...]
    """Other candidates that count as equal to the fastest."""
    work: Work | None = None
    """What a call computes and moves, if a measurement says."""

    @property
    def best(self) -> float | None:
        """Seconds of the fastest candidate; None if none has a time."""
        return next((entry.seconds for entry in self.entries if entry.seconds is not None), None)

    @property
    def winner(self) -> Entry | None:
        return None if self.chosen is None else self.entries[self.chosen]


@dataclass(frozen=True)
class Panel:
    """A kernel's cells, by their sizes. `layouts` are the facts about its arguments that do not follow from sizes."""

    name: str
    digest: str
    family: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    device: str
    environment: Environment
    cells: tuple[Cell, ...]

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.cells[0].sizes)

    @property
    def varying(self) -> tuple[str, ...]:
        """The sizes of which more than one value was measured."""
        columns = zip(*(cell.sizes for cell in self.cells), strict=True)
        return tuple(values[0][0] for values in columns if len(set(values)) > 1)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of all candidates, in order of their first cell."""
        return tuple(dict.fromkeys(entry.candidate for cell in self.cells for entry in cell.entries))


def panels(records: Iterable[Record], name: Callable[[Problem], str]) -> tuple[Panel, ...]:
    """A Panel for each kernel, device and environment in the records, which come oldest first.

    `name` returns the name of a problem's kernel. Panels are sorted by name, then by first measurement.
    """
    kernels: dict[tuple[object, ...], dict[Problem, list[Record]]] = {}
    for (problem, environment), rows in grouped(records, lambda one: (one.problem, one.environment)).items():
        kernels.setdefault((*work_of(problem), problem.device, environment), {})[problem] = rows
    made = (_panel(problems, name) for problems in kernels.values())
    return tuple(sorted((panel for panel in made if panel.cells), key=lambda panel: panel.name))


def work_of(problem: Problem) -> tuple[object, ...]:
    """What the problems of a panel share besides device and environment: everything but sizes, and facts that follow from
    sizes."""
    return problem.family, problem.kernel, problem.dtypes, layouts_of(problem)


def layouts_of(problem: Problem) -> tuple[str, ...]:
    """The facts about a problem's arguments that do not follow from its sizes."""
    sizes = problem.size
    told = Divisible, PowerOfTwo
    return tuple(str(fact) for fact in problem.layouts if not (isinstance(fact, told) and fact.name in sizes))


def _panel(problems: dict[Problem, list[Record]], name: Callable[[Problem], str]) -> Panel:
    first, rows = next(iter(problems.items()))
    made = (_cell(problem, records) for problem, records in problems.items())
    cells = sorted((cell for cell in made if cell.entries), key=lambda cell: cell.sizes)
    layouts, environment = layouts_of(first), rows[0].measurement.environment
    return Panel(name(first), first.kernel, first.family, first.dtypes, layouts, first.device, environment, tuple(cells))


def _cell(problem: Problem, records: Sequence[Record]) -> Cell:
    rivals = list(standings(records).values())
    scores, entrants = [each.score for each in rivals], [each.entrant for each in rivals]
    band = noise_band(kind_of(problem.device))
    best = pick(scores, band, entrants)
    alike = equals(scores, band, entrants)
    ranked = sorted(range(len(rivals)), key=lambda place: scores[place].seconds if scores[place].ok else math.inf)
    return Cell(
        problem.sizes,
        tuple(_entry(rivals[place]) for place in ranked),
        None if best is None else ranked.index(best),
        Certainty.NONE if best is None else _certainty(scores, len(alike), scores[best].provisional, band, entrants),
        tuple(rivals[place].measured[-1].candidate for place in alike if place != best),
        stated_work(each.measured[-1] for each in rivals),
    )


def _certainty(scores: Sequence[Score], alike: int, loaded: bool, band: float, entrants: Sequence[Entrant]) -> Certainty:
    if sum(score.ok for score in scores) < 2:
        return Certainty.ALONE
    if alike > 1:
        return Certainty.TIE
    if loaded:
        return Certainty.LOAD
    return Certainty.DOUBT if doubtful(scores, band, entrants) else Certainty.CLEAR


def _entry(standing: Standing) -> Entry:
    newest, score = standing.measured[-1], standing.score
    return Entry(
        newest.candidate,
        str(newest.config),
        newest.origin,
        newest.source_hash[:8],
        score,
        score.seconds if score.ok and score.seconds > 0 else None,
        newest.predicted,
        newest.resources,
        newest.max_error,
        newest.compile_seconds,
        " ".join(newest.detail.split()),
        len(standing.measured),
        sum(any(name == LIVE for name, _ in one.state) for one in standing.measured),
    )
