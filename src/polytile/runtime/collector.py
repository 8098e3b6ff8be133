"""Python's garbage collector rests while many objects are made that stay alive: modules, graphs and their tracing.

It searches all objects whenever their number has grown by a part, and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MANY_OBJECTS = 50_000


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Switches the collector off within the block. It took 0.5 of the 1.2 s in which the tracer and the compiler are imported,
    and 0.7 s while an encoder's training step was compiled."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def at_rest_then_searched() -> Iterator[None]:
    """The same; where the block has made more than MANY_OBJECTS, they are searched once at its end: the collector would soon do
    so anyhow, in some later call, which then takes 0.3 to 0.6 s longer (a decoder of 3 layers leaves 75 000)."""
    with at_rest():
        yield
        made = gc.get_count()[0]
    if made > MANY_OBJECTS and gc.isenabled():
        gc.collect()
