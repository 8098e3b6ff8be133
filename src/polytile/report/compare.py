"""The differences between two stores, size by size, beyond measurement noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polytile.report.cells import Cell, Entry, Panel
from polytile.runtime.device import kind_of
from polytile.tuning.decide import noise_band

ERRORS = 2.0
"""Differences of less than this many standard errors of both times together are noise."""

FASTER, SLOWER, NOISE = "faster", "slower", "within noise"


@dataclass(frozen=True)
class Change:
    """One size in both stores: what runs before and after, and the relative difference up to which two times count as equal.

    `panel` and `cell` are positions in the later store. `differs` says how the devices or environments of the two measurements
    differ.
    """

    panel: int
    cell: int
    before: Entry
    after: Entry
    band: float
    differs: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The time after over the time before."""
        assert self.before.seconds is not None and self.after.seconds is not None
        return self.after.seconds / self.before.seconds

    @property
    def verdict(self) -> str:
        if abs(math.log(self.ratio)) <= math.log1p(self.band):
            return NOISE
        return FASTER if self.ratio < 1 else SLOWER


@dataclass(frozen=True)
class Comparison:
    """All sizes with a time in both stores, the largest slowdown first, and the number of sizes with a time in only one."""

    changes: tuple[Change, ...]
    only_before: int
    only_after: int

    @property
    def geomean(self) -> float | None:
        """Geometric mean of the times after over those before; None if no size has both."""
        return statistics.geometric_mean(change.ratio for change in self.changes) if self.changes else None

    def count(self, verdict: str) -> int:
        return sum(change.verdict == verdict for change in self.changes)


Spot = tuple[int, int]
"""The positions of a panel and of a cell in it."""


def compare(before: Sequence[Panel], after: Sequence[Panel]) -> Comparison:
    """Compare each size of `after` with the same work in `before`, on the same device and in the same environment if possible,
    else where the fewest facts differ. Each cell is compared once."""
    old, new = _spots(before), _spots(after)
    changes = []
    for work, spots in new.items():
        left = old.get(work, [])
        apart = {(a, b): _differences(before[a[0]], after[b[0]]) for a in left for b in spots}
        for a, b in sorted(apart, key=lambda pair: len(apart[pair])):
            if a in left and b in spots:
                changes.append(_change(before[a[0]], a, after[b[0]], b, apart[a, b]))
                left.remove(a)
                spots.remove(b)
    changes.sort(key=lambda change: -change.ratio)
    return Comparison(tuple(changes), sum(map(len, old.values())), sum(map(len, new.values())))


def _spots(panels: Sequence[Panel]) -> dict[tuple[object, ...], list[Spot]]:
    """Every cell with a time, by its work and sizes."""
    by_work: dict[tuple[object, ...], list[Spot]] = {}
    for number, panel in enumerate(panels):
        for place, cell in enumerate(panel.cells):
            if cell.winner is not None and cell.winner.seconds is not None:
                work = panel.family, panel.digest, panel.dtypes, panel.layouts, cell.sizes
                by_work.setdefault(work, []).append((number, place))
    return by_work


def _differences(before: Panel, after: Panel) -> tuple[str, ...]:
    device = [f"device: {before.device} → {after.device}"] if before.device != after.device else []
    old, new = dict(before.environment), dict(after.environment)
    return (*device, *(f"{name}: {_said(old, name)} → {_said(new, name)}" for name in sorted({*old, *new})
                       if old.get(name) != new.get(name)))  # fmt: skip


def _said(facts: Mapping[str, str], name: str) -> str:
    return facts.get(name, "none")


def _change(before: Panel, a: Spot, after: Panel, b: Spot, differs: tuple[str, ...]) -> Change:
    old, new = _winner(before.cells[a[1]]), _winner(after.cells[b[1]])
    noise = ERRORS * math.hypot(old.score.noise, new.score.noise)
    return Change(*b, old, new, max(noise_band(kind_of(after.device)), noise), differs)


def _winner(cell: Cell) -> Entry:
    assert cell.winner is not None
    return cell.winner
