"""What a fixed choice costs: how many times as long as the fastest each candidate takes, size by size."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from polytile.report.cells import Panel

CHOSEN = "chosen for each size"
"""The name of the curve of what runs."""


@dataclass(frozen=True)
class Curve:
    """A candidate's times over the fastest candidate's, in the cells of a panel in which it has a time: (slowdown, place of the
    cell), least first. `of` is the number of cells in which any candidate has a time."""

    candidate: str
    points: tuple[tuple[float, int], ...]
    of: int

    @property
    def everywhere(self) -> bool:
        """Whether it has a time wherever another has one."""
        return len(self.points) == self.of

    @property
    def geomean(self) -> float:
        return statistics.geometric_mean(slowdown for slowdown, _ in self.points)

    @property
    def p95(self) -> float:
        """What 95 % of the cells do not exceed."""
        return self.points[max(0, math.ceil(0.95 * len(self.points)) - 1)][0]

    @property
    def worst(self) -> tuple[float, int]:
        """The largest slowdown, and the place of its cell."""
        return self.points[-1]


def curves(panel: Panel) -> tuple[Curve, ...]:
    """The curve of what is chosen, then one for each candidate that has a time: those with the most cells first, then those
    with the least geometric mean. None where fewer than two cells have a time, as nothing is fixed there."""
    points: dict[str, dict[int, float]] = {CHOSEN: {}}
    for place, cell in enumerate(panel.cells):
        best, winner = cell.best, cell.winner
        if best is None or winner is None or winner.seconds is None:
            continue
        points[CHOSEN][place] = winner.seconds / best
        for entry in cell.entries:  # of one name the fastest counts, which comes first
            if entry.seconds is not None:
                points.setdefault(entry.candidate, {}).setdefault(place, entry.seconds / best)
    of = len(points[CHOSEN])
    if of < 2:
        return ()
    made = [Curve(name, tuple(sorted((ratio, place) for place, ratio in own.items())), of) for name, own in points.items()]
    return tuple(made[:1] + sorted(made[1:], key=lambda curve: (-len(curve.points), curve.geomean)))


def single(found: tuple[Curve, ...]) -> Curve | None:
    """Of a panel's curves, that of the one candidate that would be best for all sizes; None where none has a time at each."""
    return next((curve for curve in found if curve.candidate != CHOSEN and curve.everywhere), None)
