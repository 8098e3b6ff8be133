"""Regimes over which no one candidate holds.

A regime is half an octave of each size. Mostly one candidate is best all over it. Where the order of two changes inside, as
at the size from which a second thread pays, or from multiples of 32 to multiples of 48 columns for a tile 48 wide, what was
decided at one size costs tens of per cent at another; such a regime is split into parts (runtime/regime.py) which decide
for themselves.

What a candidate c is expected to take at sizes x follows from its nearest measurement, at sizes m, and from how its own
prediction differs between the two:

    t(c, x) = t(c, m) * cost(c, x) / cost(c, m)

so that a prediction needs to know how time grows with size, and not how fast the machine is. A decision holds at x if
no candidate that was measured beside the chosen one is expected to be faster there by more than MARGIN. It must hold at
both ends of the regime: all sizes at their smallest, all at their largest. Measurements in the regimes next to it count
too, so that a decision is looked at again whenever a neighbour decides.

A candidate that is not `steady` runs other code from size to size. What it takes at one says nothing of another: a decision
for it holds where it was measured, and its regime is always split; at other sizes of its part the candidate is left to do what
is safe there (`settle`, candidates/candidate.py). On an H100 the third proposal of cuBLASLt's heuristic was
the fastest at 1088³ by 7 %, and took 1.29 and 1.41 times as long as the best at 1280³ and 1408³, which are of the same regime.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polytile.candidates.candidate import Candidate
from polytile.dispatch.decision import Decision
from polytile.dispatch.spec import KernelSpec
from polytile.runtime import regime

MARGIN = 0.05
"""Expected gains below this are no reason to measure again: predictions are not that good, and neither are measurements."""

NEAR = 1.0
"""Octaves within which a measurement says something about a regime: its own and the ones next to it."""

Words = tuple[int, ...]


@dataclass(frozen=True)
class Evidence:
    """What one decision measured: the sizes, and seconds by candidate."""

    sizes: Mapping[str, int]
    seconds: Mapping[str, float]

    @staticmethod
    def of(decision: Decision) -> Evidence:
        timed = {s.candidate: s.seconds for s in decision.standings if s.seconds > 0 and not s.note}
        return Evidence(dict(decision.measured_at or decision.sizes), timed)


@dataclass(frozen=True)
class Expectation:
    """What candidates, by name, are expected to take. `full` has all sizes of some call, those that take no part in choices
    included, which predictions may ask for."""

    candidates: Mapping[str, Candidate]
    full: Mapping[str, int]
    bucketed: frozenset[str]

    def holds(self, chosen: str, sizes: Mapping[str, int], found: Sequence[Evidence]) -> bool:
        """Whether `chosen` is expected to be as good at `sizes` as anything measured beside it, within MARGIN."""
        beside = [e for e in found if chosen in e.seconds]
        steady = getattr(self.candidates.get(chosen), "steady", True)
        if not steady and all(distance(e.sizes, sizes, self.bucketed) > 0 for e in beside):
            return False
        for name in sorted({name for e in beside for name in e.seconds} - {chosen}):
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
    """Octaves between two problems in the size that differs most; infinite where sizes differ that must not."""
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


@dataclass
class Regimes:
    """The decisions of one kernel by the words of their regimes and parts, and which regimes are split."""

    spec: KernelSpec
    decisions: dict[Words, Decision] = field(default_factory=dict)
    split: set[Words] = field(default_factory=set)

    def at(self, words: Words, sizes: Mapping[str, int]) -> Words:
        """Where a decision for these sizes, in the regime `words`, stands: there, or in a part of it."""
        return self.spec.part(words, sizes) if words in self.split else words

    def keep(
        self, words: Words, new: Decision, candidates: Iterable[Candidate], full: Mapping[str, int]
    ) -> list[tuple[Words, Words]]:
        """Files a decision, made for a call with all the sizes `full`, and splits the regimes that it shows not to be of one
        kind: its own, or some next to it. Returns (regime, part that its decision went to) for each that was split. What was
        taken out of its regime says nothing of it."""
        self.decisions[words] = new
        moved: list[tuple[Words, Words]] = []
        if self.spec.is_single(words):
            return moved
        for whole in self._doubtful(new, candidates, full):
            decision = self.decisions.pop(whole)
            part = self.spec.part(whole, dict(decision.sizes))
            self.split.add(whole)
            self.decisions[part] = replace(decision, regime=self.spec.regime(part), part_of=self.spec.regime(whole))
            moved.append((whole, part))
        return moved

    def _doubtful(self, new: Decision, candidates: Iterable[Candidate], full: Mapping[str, int]) -> list[Words]:
        expectation = Expectation({c.name: c for c in candidates}, full, self.spec.bucketed())
        near = {
            words: decision
            for words, decision in self.decisions.items()
            if decision.problem.layouts == new.problem.layouts
            and not self.spec.is_single(words)
            and distance(dict(decision.sizes), dict(new.sizes), expectation.bucketed) <= NEAR
        }
        evidence = [Evidence.of(decision) for decision in near.values()]
        found = []
        for words, decision in near.items():
            if self.spec.is_part(words) or len(Evidence.of(decision).seconds) < 2:
                continue
            ends = [{**dict(decision.sizes), **end} for end in self.spec.ends(words)]
            if not all(expectation.holds(decision.candidate, end, evidence) for end in ends):
                found.append(words)
        return found


__all__ = ["MARGIN", "NEAR", "Evidence", "Expectation", "Regimes", "Words", "distance"]
