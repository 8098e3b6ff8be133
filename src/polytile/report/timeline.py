"""When what was measured: spans of time, by the place where a store's measurements were taken, or by a campaign's worker.

A store says when a measurement was filed, not how long it took: its spans are runs of measurements without a long pause. A
campaign says how long its workers had each unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from polytile.problem import Problem
from polytile.report.cells import Panel, Sizes, work_of
from polytile.store.reading import Record
from polytile.store.records import Environment

Spot = tuple[int, int]
"""The positions of a panel and of a cell in it."""

PAUSE_SECONDS, PARTS = 0.05, 400
"""A pause ends a span if it is longer than the first, and than one of so many parts of the whole time."""


@dataclass(frozen=True)
class Sitting:
    """What a campaign's worker did with a unit: `seconds` until `ended` (seconds since 1970). `about` is the unit, for people,
    `error` why it has no measurements."""

    worker: str
    ended: float
    seconds: float
    records: Sequence[Record]
    about: str
    error: str = ""


@dataclass
class Span:
    """A time in which a lane measured, in seconds since 1970. `spots` are the sizes that were, `words` what else is to say."""

    lane: str
    began: float
    ended: float
    measurements: int
    spots: dict[Spot, None] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def join(self, other: Span) -> None:
        """Include a later span of the same lane."""
        self.ended = max(self.ended, other.ended)
        self.measurements += other.measurements
        self.spots.update(other.spots)
        self.words += other.words


@dataclass(frozen=True)
class Timeline:
    """All spans, by lane and time. `lanes` says what a lane is: "place" or "worker"."""

    lanes: str
    spans: tuple[Span, ...]


def of_store(records: Sequence[Record], panels: Sequence[Panel], lane_of: dict[tuple[str, Environment], str]) -> Timeline:
    """The time line of these records, oldest first; `lane_of` names places by device and environment."""
    spot_of = _Spots(panels)
    spans = []
    for record in records:
        one = record.measurement
        lane, at = lane_of[one.problem.device, one.environment], record.taken_at
        spans.append(Span(lane, at, at, 1, spot_of(one.problem, one.environment)))
    return Timeline("place", tuple(_joined(spans)))


def of_campaign(sittings: Iterable[Sitting], panels: Sequence[Panel]) -> Timeline:
    """The time line of a campaign: a span for each unit, or, if there are more than PARTS, one for those without a pause between
    them."""
    spot_of = _Spots(panels)
    spans = []
    for one in sittings:
        spots: dict[Spot, None] = {}
        for record in one.records:
            spots.update(spot_of(record.measurement.problem, record.measurement.environment))
        words = () if spots and not one.error else (f"{one.about}: {one.error}" if one.error else one.about,)
        spans.append(Span(one.worker, one.ended - one.seconds, one.ended, len(one.records), spots, words))
    spans.sort(key=lambda span: (span.lane, span.began))
    return Timeline("worker", tuple(spans if len(spans) <= PARTS else _joined(spans)))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The spans without the pauses between them that are short."""
    if not spans:
        return []
    pause = max(PAUSE_SECONDS, (max(span.ended for span in spans) - min(span.began for span in spans)) / PARTS)
    last: dict[str, Span] = {}
    made: list[Span] = []
    for span in spans:
        before = last.get(span.lane)
        if before is not None and span.began - before.ended <= pause:
            before.join(span)
        else:
            last[span.lane] = span
            made.append(span)
    return sorted(made, key=lambda span: (span.lane, span.began))


class _Spots:
    """Finds the cell of a problem among panels."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self._cells: dict[tuple[object, ...], dict[Sizes, Spot]] = {}
        self._known: dict[tuple[Problem, Environment], dict[Spot, None]] = {}
        for number, panel in enumerate(panels):
            work = panel.family, panel.digest, panel.dtypes, panel.layouts, panel.device, panel.environment
            self._cells[work] = {cell.sizes: (number, place) for place, cell in enumerate(panel.cells)}

    def __call__(self, problem: Problem, environment: Environment) -> dict[Spot, None]:
        """The problem's spot, or nothing if no panel has it."""
        known = self._known.get((problem, environment))
        if known is None:
            spot = self._cells.get((*work_of(problem), problem.device, environment), {}).get(problem.sizes)
            known = self._known[problem, environment] = {} if spot is None else {spot: None}
        return dict(known)
