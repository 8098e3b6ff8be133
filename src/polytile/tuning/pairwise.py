"""Pairwise statistics of a race: the ratio of two contenders' times, from the rounds in which both took part.

A disturbance of the machine lasts longer than a round (0.1-5 s against about 1 ms). It slows all contenders of a round alike
and leaves the ratios of their times unchanged, so ratios within rounds spread far less than times do. The median ratio and its
standard error bound the true ratio. A contender whose bounds lie beyond the noise band cannot be chosen. The race is over when
no bound that matters straddles the band.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

FEWEST = 3
"""With fewer common rounds the ratio is unknown."""

SURE = 3.0
"""Standard errors on either side of the median ratio; few rounds widen them by 1 + 6/n, about as Student's quantiles do
(6.6 for five rounds, 3.4 for forty)."""

FLOOR = 1e-3
"""The smallest relative spread assumed of ratios, however alike they look, because clocks tick."""

Rounds = Mapping[int, float]
"""The seconds by which a contender is judged, by the number of the round in which they were taken."""


def ratio_bounds(mine: Rounds, other: Rounds) -> tuple[float, float]:
    """Bounds of the ratio of the two contenders' times; (0, inf) where they have too few rounds in common.

    The median of log ratios has the standard error 1.25 σ/√n; σ is 1.48 times the median absolute deviation.
    """
    common = mine.keys() & other.keys()
    if len(common) < FEWEST:
        return 0.0, math.inf
    logs = [math.log(mine[number] / other[number]) for number in common]
    middle = statistics.median(logs)
    spread = max(FLOOR, 1.48 * statistics.median(abs(log - middle) for log in logs))
    error = SURE * (1 + 6 / len(logs)) * 1.25 * spread / math.sqrt(len(logs))
    return math.exp(middle - error), math.exp(middle + error)


def behind(mine: Rounds, others: Sequence[Rounds], band: float) -> bool:
    """Whether some other contender is surely faster by more than `band`."""
    return any(ratio_bounds(mine, other)[0] > 1 + band for other in others)


def level(mine: Rounds, others: Sequence[Rounds], band: float) -> bool:
    """Whether surely no other contender is faster by more than `band`."""
    return all(ratio_bounds(mine, other)[1] <= 1 + band for other in others)


def choice_is_certain(lanes: Sequence[Rounds], band: float) -> bool:
    """Whether more rounds would not change the choice: the first contender, in the order given, that is level with the fastest
    (decide.pick). All contenders before it are surely behind, and it is surely level."""
    for place, lane in enumerate(lanes):
        others = [*lanes[:place], *lanes[place + 1 :]]
        if level(lane, others, band):
            return True
        if not behind(lane, others, band):
            return False
    return False
