"""How a list of timing samples becomes one number and how far that number is to be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

QUANTILE = 0.15
"""On a shared CPU noise only adds time, for 0.1-5 s at a stretch: medians follow the neighbours, the minimum follows
luck, the 15th percentile of interleaved bursts did neither."""


def quantile(samples: Sequence[float], share: float) -> float:
    """The quantile of the samples at `share`, linear between neighbours; NaN without samples."""
    if not samples:
        return math.nan
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def reached(numbers: Iterable[float], share: float) -> float:
    """The one of these numbers that this share of them does not exceed."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarise(samples: Sequence[float]) -> tuple[float, float]:
    """(seconds, noise): the low quantile, and its relative standard error.

    The error is that of a 15th percentile of n normal samples, 1.53 σ/√n, with σ read from the distance between the
    low quantile and the median (1.04 σ): 1.48 (median - low)/(low √n). Wrong when the samples fall into two groups (a
    neighbour came or went half-way): then it is too large, which makes more candidates count as equal and never
    fewer.
    """
    low = quantile(samples, QUANTILE)
    if len(samples) < 2 or not low > 0:
        return low, math.inf if len(samples) < 2 else 0.0
    return low, 1.48 * (quantile(samples, 0.5) - low) / (low * math.sqrt(len(samples)))
