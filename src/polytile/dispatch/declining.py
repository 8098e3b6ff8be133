"""Kernels that may decline a call, since they need what the system can take away from a process, such as tiles of AMX."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, NativeEntry
from polytile.problem import Outcome

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

log = logging.getLogger("polytile.dispatch")


def entry_that_may_decline(owner: MultiKernel, candidate: Candidate) -> Entry:
    """The candidate's entry; `owner` decides who runs a call that its kernel declines. Raises what `Candidate.entry` does."""
    entry = candidate.entry()
    if candidate.declines and isinstance(entry, NativeEntry):
        return replace(entry, otherwise=functools.partial(_decide_anew, owner, candidate))
    return entry


def _decide_anew(owner: MultiKernel, candidate: Candidate, *args: Any) -> None:
    """Decides the regime of a call anew, without the candidates that may decline calls as this one has, and makes the call."""
    log.warning("Candidate %r of kernel %r %s Others serve its calls.", candidate.name, owner.spec.name, candidate.declines)
    with owner.lock:
        request = owner.request(owner.dispatcher.key_of(*args), owner.spec.ints_of(args), args)
        for each in (each for each in request.candidates if each.declines == candidate.declines):
            request.reject(each.name, Outcome.RAISED, f"it {each.declines}")
            if owner.fallbacks is not None:
                owner.fallbacks.withdraw(each.name)
        owner.learn(request)
        owner.reopen(request.key_fields)
    owner.dispatcher(*args)
