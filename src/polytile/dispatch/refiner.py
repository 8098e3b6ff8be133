"""Refiner: watches which sizes come to the regimes of a MultiKernel, and has those measured that come often (refining.py)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.counters import counters
from polytile.dispatch import refining, selector, trace, trials
from polytile.dispatch.decision import Decision
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.links import measured
from polytile.dispatch.request import Answer, Request, may_measure
from polytile.runtime import regime
from polytile.tuning import budget
from polytile.tuning.decide import Score

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel


class Refiner:
    """The MultiKernel's lock covers it, and its options are in force."""

    def __init__(self, owner: MultiKernel) -> None:
        self.owner = owner
        self._arrivals: dict[KeyFields, refining.Arrivals] = {}
        """Which sizes come to a regime, or to sub-buckets of one."""

    def count_calls(self, decision: Decision, fields: KeyFields, request: Request, entry: Entry) -> None:
        """Has the calls of `entry` counted, which runs the regime `fields`, where the decision was measured and is no stopgap.
        Gives the sizes at which another candidate is known to be faster an entry of their own."""
        if not self.resume(decision, fields, entry):
            return
        for sizes in refining.known_better(dataclasses.replace(request, key_fields=fields), decision):
            self.owner.add_exact_size(fields, sizes)

    def resume(self, decision: Decision, fields: KeyFields, entry: Entry) -> bool:
        """Has the calls of `entry` counted, as count_calls does; says whether they are."""
        arrived = None if decision.postponed else refining.arrivals(decision)
        if arrived is None or self.owner.keys.is_exact_size(fields):
            self._arrivals.pop(fields, None)  # of a decision before
            return False
        self._arrivals[fields] = arrived
        self.owner.dispatcher.insert(regime.pack(fields), entry)
        self.owner.dispatcher.watch(regime.pack(fields), arrived.interval)
        return True

    def move_to_sub_bucket(self, buckets: KeyFields, sub_buckets: KeyFields) -> None:
        """The regime `buckets` was subdivided, and what ran there runs its `sub_buckets`."""
        if buckets in self._arrivals:
            arrived = self._arrivals[sub_buckets] = self._arrivals.pop(buckets)
            self.owner.dispatcher.watch(regime.pack(sub_buckets), arrived.interval)

    def interval(self, fields: KeyFields) -> int:
        """The calls until the next look at one of this regime; 0 where its calls are not counted."""
        arrived = self._arrivals.get(fields)
        return 0 if arrived is None else arrived.interval

    def refine_if_due(self, key: int, args: tuple[Any, ...]) -> int:
        """Measures at the sizes of this call if they come often and that pays. Returns the calls until the next look."""
        spec, decision = self.owner.spec, self.owner.decision_of(key)
        arrived = self._arrivals.get(spec.keys.unpack(key))
        if decision is None or arrived is None:
            return 0
        ints = spec.ints_of(args)
        sizes = frozenset(spec.keys.deciding(ints))
        if arrived.count_call(sizes) and not trials.within():
            request = self.owner.request(key, ints, args)
            if decision.candidate not in request.names:
                arrived.close(sizes)
            elif may_measure(request) and refining.pays(request, decision, arrived, sizes):
                self._refine(key, decision, request, arrived)
        return arrived.interval

    def _refine(self, key: int, decision: Decision, request: Request, arrived: refining.Arrivals) -> None:
        """Gives the request's sizes an entry of their own if another candidate than the regime's is faster there, by what is on
        record or is measured now. Where the regime's decision is provisional and rests on these sizes, it is taken again."""
        sizes = frozenset(request.problem.sizes)
        request.store.refresh()
        scores = refining.on_record(request, decision.candidate) if sizes not in arrived.begun else None
        answer = self._measured(key, decision, request, arrived) if scores is None else _on_record(scores)
        if answer.postponed:
            arrived.begun.add(sizes)
            return
        if answer.scores and request.provisional(decision.candidate, answer.scores):
            arrived.postpone(sizes)
            return
        arrived.close(sizes)
        if decision.candidate in request.rejected:
            self.owner.drop(key)
        elif answer.scores and decision.provisional and sizes == refining.decided_by(decision):
            self.owner.reopen(self.owner.spec.keys.unpack(key))
        elif answer.scores and (best := refining.better(request, decision.candidate, answer.scores)) is not None:
            self._add_exact_size(request, best, answer)
        else:
            trace.confirmed(decision, request.problem.sizes, answer.provenance)

    def _measured(self, key: int, decision: Decision, request: Request, arrived: refining.Arrivals) -> Answer:
        """What the leading candidates take at the request's sizes. Measuring is taken to cost at least as much next time."""
        begun = budget.clock()
        answer = measured.measure_again(request, refining.leading(request, decision))
        arrived.price = max(arrived.price, budget.clock() - begun)
        self.owner.learn(key, request)
        counters.add("sizes_refined", bool(answer.scores) and not answer.postponed)
        return dataclasses.replace(answer, provenance=f"{answer.provenance}, as these sizes come often")

    def _add_exact_size(self, request: Request, best: Candidate, answer: Answer) -> None:
        fields = request.spec.keys.exact_size(request.key_fields, request.sizes)
        alone = dataclasses.replace(request, key_fields=fields)
        link = "exact" if answer.from_store else "measured"
        decision = selector.decision_from(alone, link, dataclasses.replace(answer, candidate=best))
        entry = self.owner.adopt(regime.pack(fields), decision, alone)
        if entry is not None:
            self.owner.dispatcher.insert(regime.pack(fields), entry)


def _on_record(scores: tuple[Score | None, ...]) -> Answer:
    return Answer(None, "measured before, at these sizes", scores, from_store=True)


__all__ = ["Refiner"]
