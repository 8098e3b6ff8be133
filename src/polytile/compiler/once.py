"""Threads that make the same first call together compile it once.

Dynamo looks for compiled code, finds none, waits for the lock under which everything is compiled, and compiles, even what
another thread has compiled since. So a LookAgain runs once the lock is held: it evaluates the guards again, and if some hold it
unwinds the call, which starts again and finds the code. No part of the function has run by then. No lock is added, so there is
nothing new to wait for, and a call whose code exists is not affected.

What follows a graph break is compiled by each thread: what precedes it has run, and a call that has begun cannot begin again.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._dynamo.convert_frame import CatchErrorsWrapper

TORCHS_OWN = frozenset(
    part.__code__ for part in (CatchErrorsWrapper.__call__, torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl)
)
"""What stands between a compiled function that is called and the frame of the function itself; where a module has hooks, these do
too."""


class CompiledMeanwhile(Exception):
    """Unwinds a call of which nothing has run, and whose code another thread has compiled."""


class Door(Protocol):
    """A FrontDoor, as a LookAgain sees it."""

    def called_function(self) -> types.FunctionType | None: ...

    def entries(self) -> list[Any]: ...


PAUSE = 0.001
"""Seconds until a call starts again: Dynamo releases its lock before it stores what it has compiled."""
MOST_AGAIN = 64
"""How often one thread's calls begin again for the same code. Dynamo may also pass over it while other threads' calls reorder its
list; code that it still does not find is not what it wants."""


class _Again(threading.local):
    """How often calls of this thread began again, by the guards whose code they were to find."""

    def __init__(self) -> None:
        self.times: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class LookAgain:
    """Stands in place of `convert`, Dynamo's compiler of frames, for a door. `called`: the code of what torch.compile made."""

    def __init__(self, convert: Any, called: types.CodeType, door: Door) -> None:
        self._convert, self._called, self._door, self._again = convert, called, weakref.ref(door), _Again()
        self._newest: Callable[[], Any] = lambda: None
        """The guards of the code that was compiled last, as long as they exist."""
        # Dynamo reads this while it evaluates frames, where no Python may run: a __getattr__ for it would be a frame to evaluate.
        self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        """As `convert`; or raises CompiledMeanwhile."""
        door, times = self._door(), self._again.times
        if door is None or not self._is_first(frame.f_code, door):
            return self._convert(frame, cache_entry, hooks, frame_state, skip=skip + 1)
        for guards in (self._newest(), *(entry.guard_manager for entry in door.entries())):
            if guards is not None and times.get(guards, 0) < MOST_AGAIN and guards.root.check(frame.f_locals):
                times[guards] = times.get(guards, 0) + 1
                raise CompiledMeanwhile
        result = self._convert(frame, cache_entry, hooks, frame_state, skip=skip + 1)
        if result.guarded_code is not None:
            self._newest = weakref.ref(result.guarded_code.guard_manager)
        return result

    def _is_first(self, code: types.CodeType, door: Door) -> bool:
        """Whether `code` is that of the door's function, and torch alone has run since that was called."""
        function = door.called_function()
        caller = sys._getframe(2) if function is not None and code is function.__code__ else None
        while caller is not None and caller.f_code in TORCHS_OWN:
            caller = caller.f_back
        return caller is not None and caller.f_code is self._called


def install(called: Any, door: Door) -> None:
    """Puts a LookAgain into what torch.compile returned; leaves that as it is where torch keeps its compiler elsewhere."""
    for cell in getattr(called, "__closure__", None) or ():
        callback = cell.cell_contents
        if isinstance(callback, CatchErrorsWrapper):
            callback._torchdynamo_orig_backend = LookAgain(callback._torchdynamo_orig_backend, called.__code__, door)
