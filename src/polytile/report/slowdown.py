"""The cost of a fixed choice: each candidate's time relative to the fastest, size by size."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from polytile.report.cells import Panel
from polytile.store.summary import reached

CHOSEN = "chosen for each size"
"""The name of the curve of what runs."""


@dataclass(frozen=True)
class Curve:
    """A candidate's slowdowns relative to the fastest, in the cells of a panel in which it has a time: (slowdown, index of the
    cell), ascending. `of` is the number of cells in which any candidate has a time."""

    candidate: str
    points: tuple[tuple[float, int], ...]
    of: int

    @property
    def everywhere(self) -> bool:
        """Whether it has a time wherever another candidate has one."""
        return len(self.points) == self.of

    @property
    def geomean(self) -> float:
        return statistics.geometric_mean(slowdown for slowdown, _ in self.points)

    @property
    def p95(self) -> float:
        """The slowdown that 95 % of the cells do not exceed."""
        return reached((slowdown for slowdown, _ in self.points), 0.95)

    @property
    def worst(self) -> tuple[float, int]:
        """The largest slowdown, and the index of its cell."""
        return self.points[-1]


def curves(panel: Panel) -> tuple[Curve, ...]:
    """The curve of what is chosen, then one for each candidate with a time: those with the most cells first, then by geometric
    mean. Empty if fewer than two cells have a time."""
    points: dict[str, dict[int, float]] = {CHOSEN: {}}
    for place, cell in enumerate(panel.cells):
        best, winner = cell.best, cell.winner
        if best is None or winner is None or winner.seconds is None:
            continue
        points[CHOSEN][place] = winner.seconds / best
        for entry in cell.entries:  # entries are sorted: the first of a name is the fastest
            if entry.seconds is not None:
                points.setdefault(entry.candidate, {}).setdefault(place, entry.seconds / best)
    of = len(points[CHOSEN])
    if of < 2:
        return ()
    made = [Curve(name, tuple(sorted((ratio, place) for place, ratio in own.items())), of) for name, own in points.items()]
    return tuple(made[:1] + sorted(made[1:], key=lambda curve: (-len(curve.points), curve.geomean)))


def single(found: tuple[Curve, ...]) -> Curve | None:
    """The curve of the candidate that is best when used for all sizes; None if no candidate has a time at each."""
    return next((curve for curve in found if curve.candidate != CHOSEN and curve.everywhere), None)
