"""Which candidates of a GPU need not be compiled any more: those that can no longer win.

Candidates are compiled and tried in the order of their predictions. What is tried while others still wait for a compiler is
timed at once, by a burst. Predictions of one source err together, so the least that its candidates took, relative to their
predictions, bounds what the others may take. On 190 quantised products of an H200 whose candidates of Triton and CUTLASS were all
measured (benchmarks/results/gpu_unseen_products.json), the bound left out 55 of 1140 candidates of shortlists of six and 477 of
2280 of shortlists of twelve, and never the fastest. Where this is wrong: the first two of a source were predicted far too fast,
and a later one was not.
"""

from __future__ import annotations

import math
from collections import defaultdict

BETTER = 0.8
"""How far below the least time relative to its prediction, of its source so far, a candidate may still be."""

ON_RECORD = 1.0
"""The same where the times are on record: what was left out by rough times stays so by those of a race."""

TRIED_FIRST = 2
"""How many candidates of a source say how far off its predictions are."""

BURST = 5
"""Calls of a burst."""


class Standing:
    """The times so far, in seconds. `better`: BETTER, or ON_RECORD."""

    def __init__(self, better: float | None = None) -> None:
        self.better = BETTER if better is None else better
        self.best = math.inf
        self._ratios: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, origin: str, seconds: float, predicted: float) -> None:
        """A candidate of the source `origin` took `seconds`."""
        self.best = min(self.best, seconds)
        self._ratios[origin].append(seconds / max(predicted, 1e-9))

    def cannot_win(self, origin: str, predicted: float) -> bool:
        """Whether a candidate that is predicted to take so long will take longer than the best so far."""
        ratios = self._ratios[origin]
        return len(ratios) >= TRIED_FIRST and predicted * min(ratios) * self.better > self.best
