"""Numbers of points of a loop at concrete sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polytile.ir import sizes
from polytile.schedule.canonical import LoopKernel


@dataclass(frozen=True)
class Extent:
    """A loop's independent rows (or items), points per row, and total points at given sizes."""

    rows: int
    row: int

    @property
    def points(self) -> int:
        return self.rows * self.row


def extent(kernel: LoopKernel, size: Mapping[str, int]) -> Extent:
    """The loop's number of rows at these sizes, and the number of points of each. Reads no other sizes: whoever asks may know
    those of the axes only (dispatch/fallbacks.py)."""
    values = {s: size[s.name] for s in kernel.axis_symbols}
    rows, row = ([sizes.evaluate(a.size, values) for a in axes] for axes in (kernel.loop.axes, kernel.loop.reduced))
    return Extent(math.prod(rows), math.prod(row))
