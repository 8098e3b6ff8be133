"""Configs that are not worth timing at new sizes: those that were clearly slower at nearby sizes.

The time of a user's kernel cannot be predicted, but configs roughly keep their ranks from one size to the next. Known wrong: a
config whose time falls by more than STEP per octave relative to the best. Option tune="all" times every config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from polytile.dispatch.decision import Decision

RADIUS = 2.0
"""Maximum distance in octaves, along the size that differs most."""

CLEAR, STEP = 1.1, 1.15
"""A config is a clear loser if it took more than CLEAR times as long as the best; one octave away, STEP times that.

On a model of a product whose best config changes with every wave of tiles (benchmarks/autotune_replay.py), timing all configs
takes 512 timings. 1.2 and 1.25 take 179 and lose 0.2 % at 64 unseen sizes; 1.1 and 1.2 take 136 and lose 1.2 %; 1.1 and 1.15
take 124 and lose 1.5 %; 1.05 and 1.15 take 98 and lose 1.7 %. On an H200 a product's choices lost 3.2 % at 64 such sizes.
"""


class Timed:
    """The timings for one MultiKernel. `read` adds those of its decisions."""

    def __init__(self) -> None:
        self._at: dict[tuple[tuple[str, int], ...], dict[str, float]] = {}

    def read(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            timed = {one.candidate: one.seconds for one in decision.standings if one.seconds > 0}
            if timed:
                self._at[decision.measured_at or decision.sizes] = timed

    def is_loser(self, name: str, sizes: Mapping[str, int]) -> bool:
        """Whether the config was clearly slower at the nearest sizes at which it was timed."""
        near = ((_octaves(dict(at), sizes), timed) for at, timed in self._at.items() if name in timed)
        octaves, timed = min(near, key=lambda pair: pair[0], default=(math.inf, {}))
        return octaves <= RADIUS and timed[name] > CLEAR * STEP**octaves * min(timed.values())


def _octaves(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return max((abs(math.log2((size + 1) / (other[name] + 1))) for name, size in one.items()), default=0.0)
