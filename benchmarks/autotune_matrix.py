"""Sizes that nobody tuned, and what choices at them lose, by a table of times."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping

from benchmarks.timing import geomean

Matrix = Mapping[int, Mapping[str, float]]
"""Microseconds by M and config."""


def unseen(count: int, least: int = 16, most: int = 4096, seed: int = 0) -> list[int]:
    """So many different sizes, log-uniform, in random order."""
    draw, found = random.Random(seed), dict[int, None]()
    while len(found) < count:
        found[round(math.exp(draw.uniform(math.log(least), math.log(most))))] = None
    return list(found)


def regret(matrix: Matrix, choices: Mapping[int, str]) -> float:
    """The geometric mean over sizes of the chosen config's time over the best's."""
    return geomean([matrix[m][config] / min(matrix[m].values()) for m, config in choices.items()])


def first_winners(matrix: Matrix) -> float:
    """How much the winner at one size loses at all others, as the median over the sizes that may come first."""
    winners = [min(times, key=lambda name: times[name]) for times in matrix.values()]
    return statistics.median(regret(matrix, dict.fromkeys(matrix, winner)) for winner in winners)
