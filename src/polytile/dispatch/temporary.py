"""Entries that stand in the dispatch table for a time, and then have their MultiKernel put another in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from polytile.candidates.entries import Entry, PythonEntry
from polytile.dispatch.decision import Decision
from polytile.errors import DeviceLost, InvalidInput, LaunchFailed
from polytile.tuning.headroom import copy_of
from polytile.tuning.tune import run

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

NOT_THE_KERNELS_FAULT = (IndexError, InvalidInput, DeviceLost)
"""Errors of a run that say something about the arguments, not about the candidate."""


class ProvisionalEntry:
    """Runs `entry` for so many calls, as there was no memory or time for measuring. The call after that chooses anew."""

    def __init__(self, owner: MultiKernel, entry: Entry, *, calls: int) -> None:
        self.owner, self.entry, self.calls = owner, entry, calls

    def __call__(self, *args: Any) -> None:
        owner = self.owner
        if self.calls <= 0 and (entry := owner.replace_provisional(self, args)) is not None:
            run(entry, args)
            return
        entry = self.entry
        run(entry, args)
        self.calls -= 1
        if isinstance(entry, PythonEntry) and isinstance(entry.call, FirstRun) and entry.call.has_run:
            self.entry = entry.call.entry


class FirstRun:
    """Runs a candidate that has not been tried at these sizes: if it raises, the call goes on with another.

    What it may have changed by then is put back. After a run without an error the candidate stands in the table itself.
    """

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
            self.owner.replace_failed(self, args, error)(*args)
        else:
            self._settle(args)

    def _native(self, args: tuple[Any, ...]) -> None:
        """A GPU kernel: a launch that the driver refuses has changed nothing."""
        try:
            run(self.entry, args)
        except LaunchFailed as error:
            self.owner.replace_failed(self, args, error)(*args)
        else:
            self._settle(args)

    def _settle(self, args: tuple[Any, ...]) -> None:
        """It has run: from now on it stands where this object does, if that is where the call came from."""
        self.has_run = True
        if self.stands(self.owner.dispatcher.get(self.owner.dispatcher.key_of(*args))):
            self.owner.replace(args, self.entry)

    def stands(self, entry: Any) -> bool:
        """Whether this object is what an entry of the table calls."""
        return isinstance(entry, PythonEntry) and entry.call is self
