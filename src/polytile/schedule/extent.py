"""How many points a loop has at concrete sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polytile.ir import sizes
from polytile.schedule.canonical import LoopKernel


@dataclass(frozen=True)
class Extent:
    """Concrete numbers of a loop at given sizes: independent rows (or items), points of a row, points in all."""

    rows: int
    row: int

    @property
    def points(self) -> int:
        return self.rows * self.row


def extent(kernel: LoopKernel, size: Mapping[str, int]) -> Extent:
    """How many rows the loop has at these sizes, and how many points each."""
    values = {s: size[s.name] for s in kernel.symbols}
    rows, row = ([sizes.evaluate(a.size, values) for a in axes] for axes in (kernel.loop.axes, kernel.loop.reduced))
    return Extent(math.prod(rows), math.prod(row))
