"""Subdividing regimes over which no one candidate holds.

A regime is half an octave of each size. Mostly one candidate is best all over it. Where the order of two changes inside, as
at the size from which a second thread pays, or from multiples of 32 to multiples of 48 columns for a tile 48 wide, what was
decided at one size costs tens of per cent at another. Such a regime is subdivided into sub-buckets (runtime/regime.py), which
decide for themselves.

What a candidate c is expected to take at sizes x follows from its nearest measurement, at sizes m, and from how its own
prediction differs between the two:

    t(c, x) = t(c, m) * cost(c, x) / cost(c, m)

so that a prediction needs to know how time grows with size, and not how fast the machine is. A decision holds at x if
no candidate that was measured beside the chosen one is expected to be faster there by more than MARGIN. It must hold at
both ends of the regime: all sizes at their smallest, all at their largest. Measurements in the regimes next to it count
too, so that a decision is looked at again whenever a neighbour decides.

A candidate that is not `steady` runs other code from size to size. Its time at one size says nothing about another: a decision
for it holds where it was measured, and its regime is always subdivided; at other sizes of its sub-bucket the candidate is left
to do what is safe there (`pinned_to`, candidates/candidate.py). On an H100 the third proposal of cuBLASLt's heuristic was the
fastest at 1088³ by 7 %, and took 1.29 and 1.41 times as long as the best at 1280³ and 1408³, which are of the same regime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polytile.candidates.candidate import Candidate
from polytile.dispatch.decision import Decision
from polytile.runtime import regime

MARGIN = 0.05
"""Expected gains below this are no reason to measure again: predictions are not that good, and neither are measurements."""

NEAR = 1.0
"""Octaves within which a measurement says something about a regime: the regime itself and its neighbours."""

@dataclass(frozen=True)
class Evidence:
    """The measurements behind one decision: the sizes, and seconds by candidate."""

    sizes: Mapping[str, int]
    seconds: Mapping[str, float]

    @staticmethod
    def from_decision(decision: Decision) -> Evidence:
        timed = {s.candidate: s.seconds for s in decision.standings if s.seconds > 0 and not s.note}
        return Evidence(dict(decision.measured_at or decision.sizes), timed)


@dataclass(frozen=True)
class Expectation:
    """The expected times of candidates, by name. `full` has all sizes of some call, including those that no choice depends on,
    since predictions may ask for them."""

    candidates: Mapping[str, Candidate]
    full: Mapping[str, int]
    bucketed: frozenset[str]

    def holds(self, chosen: str, sizes: Mapping[str, int], evidence: Sequence[Evidence]) -> bool:
        """Whether `chosen` is expected to be as good at `sizes` as anything measured beside it, within MARGIN."""
        beside = [e for e in evidence if chosen in e.seconds]
        steady = chosen not in self.candidates or self.candidates[chosen].steady
        if not steady and all(distance(e.sizes, sizes, self.bucketed) > 0 for e in beside):
            return False
        per_size = {name for name, candidate in self.candidates.items() if candidate.per_size}  # for exact sizes alone
        for name in sorted({name for e in beside for name in e.seconds} - {chosen} - per_size):
            known = [e for e in beside if name in e.seconds]
            nearest = min(known, key=lambda e: distance(e.sizes, sizes, self.bucketed))
            if self.seconds(name, sizes, nearest) < (1 - MARGIN) * self.seconds(chosen, sizes, nearest):
                return False
        return True

    def seconds(self, name: str, sizes: Mapping[str, int], known: Evidence) -> float:
        candidate = self.candidates.get(name)
        if candidate is None:  # it has been rejected since
            return math.inf
        there = candidate.cost({**self.full, **known.sizes})
        here = candidate.cost({**self.full, **sizes})
        return known.seconds[name] * (here / there if 0 < there < math.inf else 1.0)


def distance(first: Mapping[str, int], second: Mapping[str, int], bucketed: frozenset[str]) -> float:
    """Octaves between two problems in the size that differs most; infinite if sizes differ that must be equal."""
    if first.keys() != second.keys():
        return math.inf
    farthest = 0.0
    for name, size in first.items():
        other = second[name]
        if size == other:
            continue
        if name not in bucketed or min(size, other) <= regime.EXACT_UP_TO:
            return math.inf
        farthest = max(farthest, abs(math.log2(size / other)))
    return farthest
