"""Refiner: watches which sizes come to the regimes of a MultiKernel, and has those measured that come often (refining.py)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from polytile.candidates.candidate import Candidate, Entry
from polytile.counters import counters
from polytile.dispatch import refining, selector, trace, trials
from polytile.dispatch.decision import Decision
from polytile.dispatch.links import measured
from polytile.dispatch.request import Answer, Request, may_measure
from polytile.dispatch.subdivision import Words
from polytile.runtime import regime
from polytile.tuning import budget
from polytile.tuning.decide import Score

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel


class Refiner:
    """The MultiKernel's lock covers it, and its options are in force."""

    def __init__(self, owner: MultiKernel) -> None:
        self.owner = owner
        self._arrivals: dict[Words, refining.Arrivals] = {}
        """Which sizes come to a regime, or a part of one."""

    def count(self, decision: Decision, words: Words, request: Request, entry: Entry) -> None:
        """Has the calls of `entry` counted, which runs the regime `words`, where the decision was measured and is no stopgap;
        takes out of it the sizes at which another candidate is known to be faster."""
        arrived = None if decision.postponed else refining.arrivals(decision)
        if arrived is None or request.spec.is_single(words):
            self._arrivals.pop(words, None)  # of a decision before
            return
        self._arrivals[words] = arrived
        self.owner.dispatcher.insert(regime.pack(words), entry)
        self.owner.dispatcher.watch(regime.pack(words), arrived.interval)
        for sizes in refining.known_better(dataclasses.replace(request, words=words), decision):
            self.owner.take_out(words, sizes)

    def move(self, whole: Words, part: Words) -> None:
        """The regime `whole` was split, and what ran there is that of its `part`."""
        if whole in self._arrivals:
            arrived = self._arrivals[part] = self._arrivals.pop(whole)
            self.owner.dispatcher.watch(regime.pack(part), arrived.interval)

    def interval(self, words: Words) -> int:
        """The calls until the next look at one of this regime; 0 where its calls are not counted."""
        arrived = self._arrivals.get(words)
        return 0 if arrived is None else arrived.interval

    def look(self, key: int, args: tuple[Any, ...]) -> int:
        """Measures at the sizes of this call if they come often and that pays. Returns the calls until the next look."""
        spec, decision = self.owner.spec, self.owner.decided(key)
        arrived = self._arrivals.get(spec.words_in(key))
        if decision is None or arrived is None:
            return 0
        ints = spec.split(args)[1]
        sizes = frozenset(spec.deciding(ints))
        if arrived.met(sizes) and not trials.within():
            request = self.owner.request(key, ints, args)
            if decision.candidate not in request.names:
                arrived.settle(sizes)
            elif may_measure(request) and refining.pays(request, decision, arrived, sizes):
                self._refine(key, decision, request, arrived)
        return arrived.interval

    def _refine(self, key: int, decision: Decision, request: Request, arrived: refining.Arrivals) -> None:
        """Gives the request's sizes an entry of their own if another candidate than the regime's is faster there, by what is on
        record or is measured now. Where the regime's decision is provisional and rests on these sizes, it is made anew."""
        sizes = frozenset(request.problem.sizes)
        request.store.refresh()
        scores = refining.on_record(request, decision.candidate) if sizes not in arrived.begun else None
        answer = self._measured(key, decision, request, arrived) if scores is None else _on_record(scores)
        if answer.postponed:
            arrived.begun.add(sizes)
            return
        if answer.scores and request.provisional(decision.candidate, answer.scores):
            arrived.wait(sizes)
            return
        arrived.settle(sizes)
        if decision.candidate in request.rejected:
            self.owner.drop(key)
        elif answer.scores and decision.provisional and sizes == refining.decided_by(decision):
            self.owner.decide_anew(self.owner.spec.words_in(key))
        elif answer.scores and (best := refining.better(request, decision.candidate, answer.scores)) is not None:
            self._take_out(request, best, answer)
        else:
            trace.confirmed(decision, request.problem.sizes, answer.provenance)

    def _measured(self, key: int, decision: Decision, request: Request, arrived: refining.Arrivals) -> Answer:
        """What the leading candidates take at the request's sizes. What that has cost is the least that it is worth next time."""
        begun = budget.clock()
        answer = measured.again(request, refining.leading(request, decision))
        arrived.price = max(arrived.price, budget.clock() - begun)
        self.owner.learn(key, request)
        counters.add("sizes_refined", bool(answer.scores) and not answer.postponed)
        return dataclasses.replace(answer, provenance=f"{answer.provenance}, as these sizes come often")

    def _take_out(self, request: Request, best: Candidate, answer: Answer) -> None:
        words = request.spec.single(request.words, request.sizes)
        alone = dataclasses.replace(request, words=words)
        link = "exact" if answer.from_store else "measured"
        decision = selector.decided(alone, link, dataclasses.replace(answer, candidate=best))
        entry = self.owner.adopted(regime.pack(words), decision, alone)
        if entry is not None:
            self.owner.dispatcher.insert(regime.pack(words), entry)


def _on_record(scores: tuple[Score | None, ...]) -> Answer:
    return Answer(None, "measured before, at these sizes", scores, from_store=True)


__all__ = ["Refiner"]
