"""Undoes the choices that trials of a candidate cause in other kernels.

A candidate may call other kernels, as the library's product does for its epilogue. These choose for their sizes when the
candidate is tried, whether it wins or not. Loops then choose by the record or the prediction and measure nothing, since most
such candidates lose and predictions of pointwise work are good. Products do measure, since their predictions are less accurate.
None of these choices is a decision of the program: once the program calls the kernel, it chooses as usual.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

_ends: contextvars.ContextVar[list[Callable[[], None]] | None] = contextvars.ContextVar("polytile_trial", default=None)


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Within the block, in this thread, candidates run on trial. At its end, the actions given to `at_end` are called."""
    token = _ends.set([])
    try:
        yield
    finally:
        ends = _ends.get() or []
        _ends.reset(token)
        for end in ends:
            end()


def within() -> bool:
    """Whether this thread is trying candidates of some kernel."""
    return _ends.get() is not None


def at_end(action: Callable[[], None]) -> None:
    """Calls `action` at the end of the innermost trial that this thread is in; without one it is never called."""
    ends = _ends.get()
    if ends is not None:
        ends.append(action)
