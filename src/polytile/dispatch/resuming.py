"""A MultiKernel adopts the decisions of earlier processes (recorded.py), and decides again where more has been measured
since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polytile import options as settings
from polytile import store
from polytile.candidates.candidate import Candidate
from polytile.counters import counters
from polytile.dispatch import refiner, selector
from polytile.dispatch.decision import Decision
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.request import measuring
from polytile.runtime import regime
from polytile.tuning.environment import environment

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel


def resume(owner: MultiKernel, fields: KeyFields, decision: Decision, form: Candidate) -> None:
    """Files a decision that an earlier process has made, with its candidate in the form for the regime, which is compiled; one
    that was made meanwhile stays. Raises LookupError for exact sizes in a regime of which nothing is known."""
    pinned = form if decision.seconds is None else form.pinned_to(dict(decision.measured_at or decision.sizes))
    entry, key = pinned.entry(), regime.pack(fields)
    with owner.lock, settings.restored(owner.options):
        node, bucket = owner.node(key), owner.node(regime.pack(owner.keys.bucket(fields)))
        if node.decision is not None or node.subdivided:
            return
        if owner.keys.is_exact_size(fields) and bucket.decision is None and not bucket.subdivided:
            raise LookupError("the regime of these sizes is not decided")
        if owner.keys.is_sub_bucket(fields) and not bucket.subdivided:
            bucket.subdivided, bucket.decision = True, None
            owner.dispatcher.insert(regime.pack(bucket.fields), None)
        node.decision = decision
        owner.dispatcher.insert(key, entry)
        refiner.resume_counting(owner, node, decision, entry)
        counters.add("store_hits", decision.from_store)
        if owner.fallbacks is not None:
            owner.fallbacks.add_fallback(form, entry if form is pinned else form.entry())
            owner.fallbacks.learn(form.name, owner.spec.sizes(decision.ints))
    if owner.learning is not None:
        owner.fill_open_regimes(decision.ints, 1)
        if decision.link in selector.UNMEASURED and measuring():
            owner.learning.measure(key, decision.ints)


def reconsider(owner: MultiKernel, fields: KeyFields) -> None:
    """Decides anew for a regime, by what is on record, if that has grown since its decision was made; in the background."""
    decision, key, target = owner.regimes.get(fields), regime.pack(fields), owner.spec.target
    with settings.restored({**owner.options, "stall": "compile"}):
        if decision is None or len(store.current().exact(decision.problem, environment(target))) <= decision.evidence:
            return
        request = owner.request(key, decision.ints, None, owner.keys.pointers(fields))
        better = selector.choose(request) if request.candidates else None
        if better is None or better.link != "exact" or better.candidate == decision.candidate:
            return
        request.named(better.candidate).prepare()
        request.named(better.candidate).entry()
        with owner.lock:
            entry = owner.adopt(better, request) if owner.regimes.get(fields) is decision else None
            if entry is not None:
                owner.dispatcher.insert(key, entry)
