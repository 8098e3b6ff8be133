"""Pauses Python's garbage collector while many long-lived objects are created: modules, graphs, traces.

The collector scans all objects whenever their number has grown by a certain share, and finds no garbage there.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MANY_OBJECTS = 50_000
"""Number of objects created in blocks from which the full collection is not left to a later call."""

PART = 4
"""Python starts a full collection when more than 1/PART of all objects are new since the last one."""

_unsearched = 0
"""Objects that blocks have created since the last full collection."""

_searched = 0
"""Objects that blocks had created by then. The total number of objects is not queried: `gc.get_objects` takes a
reference to each object, and a tuple that another thread is building must have no second reference."""


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Disables the collector within the block. Collections took 0.5 s of the 1.2 s that importing the tracer and the
    compiler takes, and 0.7 s while an encoder's training step was compiled."""
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
    """Like `at_rest`, but runs one full collection at the end of the block if blocks have created more than
    MANY_OBJECTS and Python would soon do so anyway. Otherwise some later call would take 0.3 to 0.6 s longer (the
    compiler has 300 000 objects; a decoder of 3 layers leaves 75 000)."""
    global _unsearched, _searched
    with at_rest():
        yield
    if gc.isenabled() and _unsearched > max(MANY_OBJECTS, _searched // PART):
        gc.collect()
        _unsearched, _searched = 0, _searched + _unsearched


OF_PYTHON = 1000
"""Frozen objects that no program has frozen: `gc.freeze` freezes all there are, thousands in any program."""


@contextlib.contextmanager
def at_rest_uncounted() -> Iterator[None]:
    """Like `at_rest`, and no later call searches all objects because of those created within the block: Python does so once so
    many are new. It took 0.3 s of a call of a small model, soon after the background had loaded its program. The first call would
    search the compiler's modules.

    Python has no function for this. `freeze` takes objects out of all searches without looking at them, `unfreeze` puts them
    among the oldest. Objects that the program itself has frozen stay so; then all counts as always. Fewer than OF_PYTHON are
    immortal objects, which searches of Python 3.12 themselves put there.
    """
    with at_rest():
        yield
        if gc.get_freeze_count() < OF_PYTHON:
            gc.freeze()
            gc.unfreeze()
