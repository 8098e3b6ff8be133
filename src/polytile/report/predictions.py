"""How near predictions came: the time that was predicted over the time that was measured, by the source of candidates."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from polytile.report.cells import Cell, Panel
from polytile.store.summary import reached


@dataclass(frozen=True)
class Calibration:
    """Predicted over measured time of a panel's candidates from one source, ascending: (ratio, index of the cell)."""

    origin: str
    points: tuple[tuple[float, int], ...]

    @property
    def geomean(self) -> float:
        return statistics.geometric_mean(ratio for ratio, _ in self.points)

    def quantile(self, share: float) -> float:
        """The ratio that this share of candidates do not exceed."""
        return reached((ratio for ratio, _ in self.points), share)


def calibrations(panel: Panel) -> tuple[Calibration, ...]:
    """Those of a panel, by source; sources without a prediction beside a time are left out."""
    points: dict[str, list[tuple[float, int]]] = {}
    for place, cell in enumerate(panel.cells):
        for entry in cell.entries:
            if entry.seconds is not None and entry.predicted is not None and entry.predicted > 0:
                points.setdefault(entry.origin, []).append((entry.predicted / entry.seconds, place))
    return tuple(Calibration(origin, tuple(sorted(own))) for origin, own in sorted(points.items()))


def first_choices(panel: Panel) -> tuple[float, ...]:
    """What measuring gains: for each size with two times or more, the best predicted candidate's time over the fastest's."""
    return tuple(lost for cell in panel.cells if (lost := _lost(cell)) is not None)


def _lost(cell: Cell) -> float | None:
    timed = [(entry.predicted, entry.seconds) for entry in cell.entries if entry.seconds is not None]
    known = [(predicted, seconds) for predicted, seconds in timed if predicted is not None]
    if len(known) < 2 or len(known) < len(timed):
        return None
    return min(known)[1] / min(seconds for _, seconds in known)
