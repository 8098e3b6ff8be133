"""Locks that a forked child finds open.

A child has a copy of its parent's memory, but only the thread that forked: a lock that another thread held would stay closed
there for good. What that thread was doing is not finished in the child; whoever needs it begins it again.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """A threading.Lock."""
    made = threading.Lock()
    _made.add(made)
    return made


def rlock() -> threading.RLock:
    """A threading.RLock."""
    made = threading.RLock()
    _made.add(made)
    return made


def _open_all() -> None:
    for made in tuple(_made):
        made._at_fork_reinit()  # as the standard library's own locks are opened, those of logging for one


os.register_at_fork(after_in_child=_open_all)
