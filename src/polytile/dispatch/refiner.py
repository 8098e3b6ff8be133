"""Watches the sizes of calls in the regimes of a MultiKernel, and measures the frequent ones (refining.py).

The MultiKernel's lock is held throughout, and its options are in force; `on_due`, which the dispatch table calls, ensures both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.counters import counters
from polytile.dispatch import last_resort, refining, selector, trace, trials
from polytile.dispatch.decision import Decision
from polytile.dispatch.links import measured
from polytile.dispatch.request import Answer, Request, may_measure
from polytile.runtime import regime
from polytile.tuning import budget
from polytile.tuning.decide import Score

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel
    from polytile.dispatch.tree import Node


def count_calls(owner: MultiKernel, node: Node, request: Request, entry: Entry) -> None:
    """Has the calls of `entry` counted, which runs where the `node` decides, if its decision was measured and is no stopgap.
    Gives the sizes at which another candidate is known to be faster a node of their own."""
    decision = node.decision
    assert decision is not None
    resume_counting(owner, node, decision, entry)
    if node.arrivals is not None:
        for sizes in refining.known_better(dataclasses.replace(request, key_fields=node.fields), decision):
            owner.add_exact_size(node.fields, sizes)


def resume_counting(owner: MultiKernel, node: Node, decision: Decision, entry: Entry) -> None:
    """Has the calls of `entry` counted, as count_calls does."""
    node.arrivals = None if decision.postponed or owner.keys.is_exact_size(node.fields) else refining.arrivals(decision)
    if node.arrivals is not None:
        owner.dispatcher.insert(regime.pack(node.fields), entry)
        owner.dispatcher.watch(regime.pack(node.fields), node.interval)


def on_due(owner: MultiKernel, args: tuple[Any, ...]) -> None:
    """Looks at this call, since the table has counted the requested number of calls of its entry."""
    key, calls = owner.dispatcher.key_of(*args), refining.LEAST_CALLS
    if owner.record_key(key):
        return
    free = owner.lock.acquire(blocking=False)
    try:
        if free:
            with settings.restored(owner.options):
                if is_due(owner, key, owner.spec.ints_of(args), owner.pointers(args)):
                    refine(owner, key, args)
                calls = owner.node(key).interval
    except Exception as error:
        if not last_resort.is_defect(error):
            raise
        last_resort.report_failure(owner.spec, "measure more of", error)
    finally:
        owner.dispatcher.watch(key, calls)
        if free:
            owner.lock.release()


def is_due(owner: MultiKernel, key: int, ints: tuple[int, ...], pointers: Sequence[int]) -> bool:
    """Counts a call. Returns whether its sizes come often enough for measuring there to pay."""
    node, sizes = owner.node(key), frozenset(owner.keys.deciding(ints))
    decision, arrived = node.decision, node.arrivals
    if decision is None or arrived is None or not arrived.count_call(sizes) or trials.within():
        return False
    request = owner.request(key, ints, None, pointers)
    if decision.candidate in request.names:
        return refining.pays(request, decision, arrived, sizes)
    arrived.close(sizes)
    return False


def refine(owner: MultiKernel, key: int, args: tuple[Any, ...]) -> None:
    """Gives the sizes of these arguments, of the regime `key`, an entry of their own if another candidate than the regime's is
    faster there, by what is on record or is measured now. Where the regime's decision is provisional and rests on these sizes,
    it is taken again."""
    node, request = owner.node(key), owner.request(key, owner.spec.ints_of(args), args)
    decision, arrived = node.decision, node.arrivals
    if decision is None or arrived is None or not may_measure(request):
        return
    sizes = frozenset(request.problem.sizes)
    request.store.refresh()
    scores = refining.on_record(request, decision.candidate) if sizes not in arrived.begun else None
    answer = _on_record(scores) if scores is not None else _measured(owner, node, request, decision)
    if answer.postponed:
        arrived.begun.add(sizes)
        return
    if answer.scores and request.provisional(decision.candidate, answer.scores):
        arrived.postpone(sizes)
        return
    arrived.close(sizes)
    if decision.candidate in request.rejected:
        owner.drop(key)
    elif answer.scores and decision.provisional and sizes == refining.decided_by(decision):
        owner.reopen(node.fields)
    elif answer.scores and (best := refining.better(request, decision.candidate, answer.scores)) is not None:
        _add_exact_size(owner, request, best, answer)
    else:
        trace.confirmed(decision, request.problem.sizes, answer.provenance)


def _measured(owner: MultiKernel, node: Node, request: Request, decision: Decision) -> Answer:
    """What the leading candidates take at the request's sizes. Measuring is taken to cost at least as much next time."""
    begun = budget.clock()
    answer = measured.measure_again(request, refining.leading(request, decision))
    if node.arrivals is not None:
        node.arrivals.price = max(node.arrivals.price, budget.clock() - begun)
    owner.learn(request)
    counters.add("sizes_refined", bool(answer.scores) and not answer.postponed)
    return dataclasses.replace(answer, provenance=f"{answer.provenance}, as these sizes come often")


def _add_exact_size(owner: MultiKernel, request: Request, best: Candidate, answer: Answer) -> None:
    fields = request.spec.keys.exact_size(request.key_fields, request.sizes)
    alone = dataclasses.replace(request, key_fields=fields)
    link = "exact" if answer.from_store else "measured"
    decision = selector.decision_from(alone, link, dataclasses.replace(answer, candidate=best))
    entry = owner.adopt(decision, alone)
    if entry is not None:
        owner.dispatcher.insert(regime.pack(fields), entry)


def _on_record(scores: tuple[Score | None, ...]) -> Answer:
    return Answer(None, "measured before, at these sizes", scores, from_store=True)
