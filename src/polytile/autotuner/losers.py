"""Configs that are not worth timing at new sizes: those that were clearly slower at nearby sizes.

The time of a user's kernel cannot be predicted, but what one wave of its programs takes changes slowly with the sizes, and how many
waves a config needs follows from the grid: ceil(programs / multiprocessors). Known wrong: a config whose waves become faster by more
than STEP per octave relative to the best's; a kernel whose programs share what is left of a wave. Option tune="all" times every
config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from polytile.dispatch.decision import Decision

RADIUS = 4.0
"""Maximum distance in octaves, along the size that differs most."""

CLEAR, STEP = 1.1, 1.1
"""A config is a clear loser if it is expected to take more than CLEAR times as long as the best; one octave away, STEP times that.

On a product's times at 64 unseen sizes on an H200, 768 timings if each config is timed at each size, this takes 73 timings and
loses 1.0 %, in the mean over 40 orders of the sizes. Without the number of waves it takes 89 and loses 1.6 %; with 1.05 and 1.15, 67
and 1.2 %; with 1.2 and 1.15, 88 and 1.0 %.
"""

Sizes = tuple[tuple[str, int], ...]


class Timed:
    """The timings for one MultiKernel on a device with `processors` multiprocessors. `read` adds those of its decisions."""

    def __init__(self, processors: int = 1) -> None:
        self.processors = processors
        self._at: dict[Sizes, dict[str, float]] = {}
        self._waves: dict[Sizes, dict[str, int]] = {}

    def read(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            timed = {one.candidate: one.seconds for one in decision.standings if one.seconds > 0}
            if timed:
                self._at[decision.measured_at or decision.sizes] = timed

    def launched(self, sizes: Mapping[str, int], programs: Mapping[str, int]) -> None:
        """Say how many programs the configs launch at these sizes."""
        self._waves[tuple(sizes.items())] = {name: max(1, math.ceil(count / self.processors)) for name, count in programs.items()}

    def is_loser(self, name: str, sizes: Mapping[str, int]) -> bool:
        """Whether the config was clearly slower at the nearest sizes at which it was timed, the waves there and here considered."""
        near = ((_octaves(dict(at), sizes), at) for at, timed in self._at.items() if name in timed)
        octaves, at = min(near, key=lambda pair: pair[0], default=(math.inf, ()))
        if octaves > RADIUS:
            return False
        here, there = self._waves.get(tuple(sizes.items()), {}), self._waves.get(at, {})
        expected = {
            one: seconds * (here[one] / there[one] if one in here and one in there else 1.0) for one, seconds in self._at[at].items()
        }
        return expected[name] > CLEAR * STEP**octaves * min(expected.values())


def _octaves(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return max((abs(math.log2((size + 1) / (other[name] + 1))) for name, size in one.items()), default=0.0)
