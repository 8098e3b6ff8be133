"""The time to start a parallel region at the moment, and the least that this process has measured.

On a virtual machine the cores that a program runs on move: on one of two cores an empty region took 0.42 µs for some tens of
seconds and 0.93 µs for the next, and kernels of two threads, of 2-8 µs, 0.75-1.1 µs more. It is a condition of a measurement,
like warm caches, and not noise. So it is measured beside kernels of several threads and stored with their times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_least: dict[int, float] = {}
"""Seconds by number of threads."""


@dataclass(frozen=True)
class Region:
    """Seconds of an empty parallel region, and the least that was seen before or then. Both NaN: unknown."""

    seconds: float = math.nan
    least: float = math.nan

    @property
    def excess(self) -> float:
        """Seconds beyond the least; 0 where that is not known."""
        return 0.0 if math.isnan(self.seconds) else max(0.0, self.seconds - self.least)


UNKNOWN = Region()


def time_region(threads: int) -> Region:
    """Times empty regions of `threads` threads, for about 0.1 ms. Unknown for one thread, without OpenMP, and while other
    programs have the cores."""
    from polytile.runtime import launcher

    seconds = math.nan if threads == 1 else launcher.region_seconds(threads)
    if math.isnan(seconds):
        return UNKNOWN
    _least[threads] = min(seconds, _least.get(threads, math.inf))
    return Region(seconds, _least[threads])
