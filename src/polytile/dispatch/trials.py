"""What candidates on trial cause in other kernels, and how it is undone.

A candidate may call kernels of its own, as the library's product does with an epilogue: they choose for their sizes when it is
tried, whether it wins or not. Loops choose by what is known and predicted then, and measure nothing: most such candidates
lose, and of pointwise work predictions are good. Products, of which they are 15 % off, do measure. What is chosen is no
decision of the program's in either case; once the program calls a kernel, it chooses like any other.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

_ends: contextvars.ContextVar[list[Callable[[], None]] | None] = contextvars.ContextVar("polytile_trial", default=None)


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Within the block, in this thread, candidates run on trial; afterwards what was given to `at_end` is called."""
    token = _ends.set([])
    try:
        yield
    finally:
        ends = _ends.get() or []
        _ends.reset(token)
        for end in ends:
            end()


def within() -> bool:
    """Whether this thread tries candidates of some kernel."""
    return _ends.get() is not None


def at_end(action: Callable[[], None]) -> None:
    """Has `action` called at the end of the trial that this thread is in, the innermost; without one it is never called."""
    ends = _ends.get()
    if ends is not None:
        ends.append(action)
