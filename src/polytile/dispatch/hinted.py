"""Choosing ahead of calls, for the sizes that hints name: no call waits yet, and these are the sizes that matter.

Random arguments are made at exactly these sizes (KernelSpec.make_args), and each hint gets a decision of its own: a hint in a
regime that was decided at other sizes gets one for its exact sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polytile import options as settings
from polytile.dispatch import ahead, selector
from polytile.dispatch.links import prior
from polytile.dispatch.request import Request, measuring
from polytile.errors import DivisionByZero

if TYPE_CHECKING:
    from polytile.candidates.candidate import Candidate
    from polytile.dispatch.decision import Decision
    from polytile.dispatch.multikernel import MultiKernel

SHORTLIST = {"cpu": 6}
"""The smallest `shortlist` for a hinted size, by type of device."""

HINTED = ", for a hint"
"""What a decision's provenance adds if a hint asked for it."""


def warm(owner: MultiKernel, hints: Iterable[Mapping[str, int]]) -> list[Decision]:
    """Chooses for the hinted sizes. Returns one decision per hint. Raises HintError for a hint without possible arguments."""
    return warm_on(owner, [owner.spec.arguments_for(hint) for hint in hints])


def warm_on(owner: MultiKernel, calls: Sequence[tuple[Any, ...]]) -> list[Decision]:
    """Chooses for the sizes of these arguments, which may be changed, after starting to compile the candidates of all calls side
    by side. Returns one decision per call. If made-up arguments divide by zero, the first call chooses."""
    with owner.lock, settings.restored(owner.options):
        shortlist = max(settings.get("shortlist"), SHORTLIST.get(owner.spec.target.type, 1))
        tune = "thorough" if settings.get("tune") == "auto" else settings.get("tune")
    patient = {"shortlist": shortlist, "tune": tune, "stall": "tune"}
    with owner.lock, settings.restored({**owner.options, **patient}):
        for args in calls:
            key = owner.planned_key(args)
            if owner.decision_of(key) is None:
                start_compiling(owner.request(key, owner.spec.ints_of(args), args))
        for args in calls:
            with contextlib.suppress(DivisionByZero):
                _choose(owner, args)
        decided = [owner.decision_of(owner.dispatcher.key_of(*args)) for args in calls]
        return [decision for decision in decided if decision is not None]


def _choose(owner: MultiKernel, args: tuple[Any, ...]) -> None:
    """Decides for the regime of these arguments, or for these exact sizes where the regime was decided at others."""
    key, ints = owner.planned_key(args), owner.spec.ints_of(args)
    earlier = owner.decision_of(key)
    if earlier is not None and earlier.sizes != owner.keys.deciding(ints):
        owner.add_exact_size(owner.keys.unpack(key), owner.spec.sizes(ints))
        key = owner.planned_key(args)
    if owner.decision_of(key) is None:
        entry = owner.select(key, args)
        owner.dispatcher.insert(owner.dispatcher.key_of(*args), entry)  # this very decision may subdivide it
    node = owner.node(owner.dispatcher.key_of(*args))
    if node.decision is not None and HINTED not in node.decision.provenance:
        node.decision = dataclasses.replace(node.decision, provenance=node.decision.provenance + HINTED)


def start_compiling(request: Request) -> list[Candidate]:
    """Starts compiling what a decision will need, and returns that: the candidate already known to win, or a shortlist."""
    known = selector.choose(dataclasses.replace(request, args=None)) if request.candidates else None
    decided = known is not None and (known.link not in selector.UNMEASURED or not measuring())
    needed = [request.named(known.candidate)] if known is not None and decided else list(prior.shortlist(request))
    for candidate in needed:
        ahead.start_compiling(candidate)
    return needed
