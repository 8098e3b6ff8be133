"""What polytile wants of its choices and predictions, beside what a report's measurements say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polytile.report.cells import Panel
from polytile.report.compare import SLOWER, Comparison
from polytile.report.predictions import first_choices
from polytile.store.summary import reached


@dataclass(frozen=True)
class Target:
    """A figure that should be `most` at most."""

    what: str
    most: float
    found: float

    @property
    def met(self) -> bool:
        return self.found <= self.most


def targets(panels: Sequence[Panel], comparison: Comparison | None) -> list[Target]:
    """The targets that these measurements can speak about."""
    return list(_targets(panels, comparison))


def _targets(panels: Sequence[Panel], comparison: Comparison | None) -> Iterator[Target]:
    where = "× fastest, over all sizes with two times or more"
    chosen = sorted(_over_fastest(panels))
    if chosen:
        yield Target(f"what runs, {where}", 1.01, statistics.geometric_mean(chosen))
        yield Target("the same, at worst", 1.05, chosen[-1])
    predicted = [lost for panel in panels for lost in first_choices(panel)]
    if predicted:
        yield Target(f"the best predicted, {where}", 1.03, statistics.geometric_mean(predicted))
        yield Target("the same, of 95 % of these sizes at most", 1.12, reached(predicted, 0.95))
    if comparison is not None and comparison.changes:
        yield Target("sizes that became slower", 0, comparison.count(SLOWER))


def _over_fastest(panels: Sequence[Panel]) -> Iterator[float]:
    for cell in (cell for panel in panels for cell in panel.cells):
        winner = cell.winner
        timed = sum(entry.seconds is not None for entry in cell.entries)
        if timed > 1 and cell.best is not None and winner is not None and winner.seconds is not None:
            yield winner.seconds / cell.best
