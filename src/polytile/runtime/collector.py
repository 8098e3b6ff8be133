"""Python's garbage collector rests while many objects are made that stay alive: modules, graphs and their tracing.

It searches all objects whenever their number has grown by a part, and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MANY_OBJECTS = 50_000
"""Objects that blocks have made, from which on the search of all objects is not left to a later call."""

PART = 4
"""Python itself searches all objects once those made since the last such search are more than one of so many."""

_unsearched = 0
"""Objects that blocks have made since the last search."""

_searched = 0
"""Objects that they had made until then. How many there were in all is not asked: `gc.get_objects` holds a reference to each, and
a tuple that another thread is building must have no second one."""


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Switches the collector off within the block. It took 0.5 of the 1.2 s in which the tracer and the compiler are imported,
    and 0.7 s while an encoder's training step was compiled."""
    global _unsearched
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            _unsearched += gc.get_count()[0]
            gc.enable()


@contextlib.contextmanager
def at_rest_then_searched() -> Iterator[None]:
    """The same. Where this block and those before it have made more than MANY_OBJECTS, all are searched once at its end, if the
    collector would soon do so anyhow, in some later call, which then takes 0.3 to 0.6 s longer (the compiler has 300 000 objects,
    a decoder of 3 layers leaves 75 000)."""
    global _unsearched, _searched
    with at_rest():
        yield
    if gc.isenabled() and _unsearched > max(MANY_OBJECTS, _searched // PART):
        gc.collect()
        _unsearched, _searched = 0, _searched + _unsearched
