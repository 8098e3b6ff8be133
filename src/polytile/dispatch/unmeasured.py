"""What calls run before anything is measured: the candidate that is on record or predicted to be fastest, compiled ahead of
them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import CompiledCandidate
from polytile.counters import counters
from polytile.dispatch import selector
from polytile.dispatch.ahead import compile_elsewhere, start_compiling
from polytile.dispatch.request import measuring
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel


def decide(
    owner: MultiKernel,
    ints: Sequence[int],
    pointers: Sequence[int] = (),
    key: int | None = None,
    measured: bool = True,
    compiling: bool = True,
    meanwhile: Callable[[], None] | None = None,
) -> bool:
    """Compiles the candidate that is known to be fastest at these integers, or predicted to be if nothing is known, and makes
    calls there run it. `key` is the key of the call, if there was one; without pointers, tensors count as aligned. If measuring
    could change the choice, the background measures, unless `measured` is false. Without `compiling`, decides nothing where a
    compiler is needed. `meanwhile`: see builder.ask. Returns whether nothing is left to compile."""
    ints, decision = tuple(ints), None
    with settings.restored({**owner.options, "stall": "compile"}), counters.stage("choosing"):
        called, key = key, owner.planned_key(ints) if key is None else key
        while decision is None:
            with owner.lock:
                decision = owner.decision_of(key)
                if decision is not None:
                    break
                if called is not None and not owner.dispatcher.is_open(key):
                    return True  # it was subdivided or forgotten meanwhile
                request = owner.request(key, ints, None, pointers)
                wanted = owner.decide(request)
            if not (compiling or is_compiled(request.named(wanted.candidate))):
                return False
            with contextlib.suppress(Exception):  # compiled without the lock; whoever adopts it meets the error again
                compile_elsewhere(owner, [request.named(wanted.candidate)], meanwhile)
                request.named(wanted.candidate).prepare()
                request.named(wanted.candidate).entry()
            with owner.lock:
                entry = owner.adopt(wanted, request)
                if entry is not None:
                    owner.enter(entry, request)
                    decision = wanted
    with settings.restored(owner.options):
        better = measured and decision.link in selector.UNMEASURED and measuring()
        if owner.learning is not None and (better or settings.get("collect")):
            owner.learning.measure(key, ints)
    return True


def is_compiled(candidate: Candidate) -> bool:
    """Whether a candidate can be loaded without a compiler."""
    return candidate.ready() or (isinstance(candidate, CompiledCandidate) and candidate.is_cached())


def prepare_everywhere(owner: MultiKernel, ints: Sequence[int], varying: Collection[str]) -> Candidate | None:
    """Starts compiling a form of the candidate decided for these integers that is right in all regimes of aligned tensors, and
    works out which new regimes it serves. `varying` names the sizes that differ from call to call. If nothing serves at all
    sizes yet, it also starts compiling a candidate that can, and returns that."""
    decision = owner.decision_of(owner.dispatcher.key_of(*ints))
    if decision is None or owner.learning is None or owner.fallbacks is None:
        return None
    owner.fill_open_regimes(ints, varying=varying)
    facts, sizes = Facts(aligned=owner.keys.facts_for_code(tuple(ints)).aligned), owner.spec.sizes(ints)
    with settings.restored(owner.options):
        form = owner.named(decision.candidate).specialise(facts)
        compile_elsewhere(owner, [form])
        start_compiling(form)
        owner.learning.load_when_compiled(form)
        if owner.fallbacks.serve_everywhere:
            return None
        able = [c for c in owner.candidates if owner.fallbacks.valid_everywhere(c) and c.name not in owner.unfit]
        best = min(able, key=lambda candidate: candidate.cost(sizes), default=None)
        if best is None:
            return None
        compile_elsewhere(owner, [best.specialise(facts)])
        start_compiling(best.specialise(facts))
        return best.specialise(facts)
