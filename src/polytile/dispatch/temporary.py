"""Entries that stand in the dispatch table until their MultiKernel replaces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from polytile import options as settings
from polytile.candidates.entries import Entry, PythonEntry
from polytile.dispatch import trace
from polytile.dispatch.decision import Decision
from polytile.dispatch.request import Request
from polytile.errors import DeviceLost, InvalidInput, LaunchFailed
from polytile.problem import Outcome
from polytile.tuning.headroom import copy_of
from polytile.tuning.tune import run

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

NOT_THE_KERNELS_FAULT = (IndexError, InvalidInput, DeviceLost)
"""Errors that are the arguments' fault and not the candidate's."""


def entry_until_tried(owner: MultiKernel, decision: Decision, entry: Entry, request: Request) -> Entry:
    """The entry to put into the table. If the candidate is untried, it falls back to another one should this one raise. If
    measuring was postponed, it chooses anew after some calls. Else it is `entry` itself."""
    untried = isinstance(entry, PythonEntry) or owner.spec.target.type == "cuda"
    if untried and not decision.tried and len(request.candidates) > 1:
        entry = PythonEntry(FirstRun(owner, decision, entry))
    if decision.postponed and not request.last_chance:
        node = owner.node_for(request, decision)
        node.postponed += 1
        entry = PythonEntry(ProvisionalEntry(owner, entry, calls=2 ** (node.postponed - 1)))
    return entry


class ProvisionalEntry:
    """Runs `entry` for some calls, since memory or time was short for measuring. The call after these chooses anew."""

    def __init__(self, owner: MultiKernel, entry: Entry, *, calls: int) -> None:
        self.owner, self.entry, self.calls = owner, entry, calls

    def __call__(self, *args: Any) -> None:
        if self.calls <= 0 and (entry := self._replaced(args)) is not None:
            run(entry, args)
            return
        entry = self.entry
        run(entry, args)
        self.calls -= 1
        if isinstance(entry, PythonEntry) and isinstance(entry.call, FirstRun) and entry.call.has_run:
            self.entry = entry.call.entry

    def _replaced(self, args: tuple[Any, ...]) -> Entry | None:
        """The entry that runs calls like this one from now on, decided now if necessary; None while another thread chooses."""
        owner = self.owner
        if not owner.lock.acquire(blocking=False):
            return None
        try:
            entry: Any = owner.dispatcher.get(owner.dispatcher.key_of(*args))
            replaced = entry is not None and not (isinstance(entry, PythonEntry) and entry.call is self)
            return entry if replaced else owner.replace(args, owner.choose_entry(args))
        finally:
            owner.lock.release()


class FirstRun:
    """Runs a candidate that has not been tried at these sizes. If it raises, the call goes on with another candidate, after the
    arguments that it may have changed were restored. After a run without an error, the candidate itself replaces this entry."""

    def __init__(self, owner: MultiKernel, decision: Decision, entry: Entry) -> None:
        self.owner, self.decision, self.entry = owner, decision, entry
        self.has_run = False

    def __call__(self, *args: Any) -> None:
        if not isinstance(self.entry, PythonEntry):
            self._native(args)
            return
        roles = self.owner.spec.roles
        kept = [(t, copy_of(t)) for t, role in zip(args, roles, strict=False) if role == "inout" and t is not None]
        try:
            self.entry.call(*args)
        except NOT_THE_KERNELS_FAULT:
            raise
        except Exception as error:
            with torch.no_grad():
                for tensor, before in kept:
                    tensor.copy_(before)
            self._replaced(args, error)(*args)
        else:
            self._settle(args)

    def _native(self, args: tuple[Any, ...]) -> None:
        """Runs a GPU kernel. A launch that the driver refuses has changed nothing."""
        try:
            run(self.entry, args)
        except LaunchFailed as error:
            self._replaced(args, error)(*args)
        else:
            self._settle(args)

    def _replaced(self, args: tuple[Any, ...], error: Exception) -> Callable[..., None]:
        """What to call with the same arguments in place of the candidate, which raised `error`: another candidate, or, if calls
        do not wait, what serves until one is decided."""
        owner = self.owner
        with owner.lock, settings.restored(owner.call_options()):
            called = owner.dispatcher.key_of(*args)
            candidate = owner.named(self.decision.candidate)
            owner.request(called, owner.spec.ints_of(args), args).record_failure(candidate, Outcome.RAISED, error)
            if owner.spec.family == "user":
                trace.rejected(owner.spec, candidate.name, f"{type(error).__name__}: {error}", Outcome.RAISED)
            for key in {called, *(key for key, entry in owner.dispatcher.table().items() if self.stands(entry))}:
                node = owner.node(key)
                node.failures[candidate.name], node.decision = f"raised {type(error).__name__}: {error}", None
                if owner.fallbacks is not None:
                    owner.fallbacks.exclude(node.fields, (candidate.name,))
                owner.dispatcher.reopen(key)
            return owner.dispatcher

    def _settle(self, args: tuple[Any, ...]) -> None:
        """Puts the candidate into the table in place of this object, if the call came through the table."""
        self.has_run = True
        if self.stands(self.owner.dispatcher.get(self.owner.dispatcher.key_of(*args))):
            self.owner.replace(args, self.entry)

    def stands(self, entry: Any) -> bool:
        """Whether an entry of the table calls this object."""
        return isinstance(entry, PythonEntry) and entry.call is self
