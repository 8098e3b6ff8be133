"""A core that calls leave to whoever makes the program or the kernels that they wait for.

    wanted()       within the block somebody makes them
    is_wanted()    whether somebody does
    left()         within the block, ATen's operators leave a core; generated kernels leave it by themselves (launcher.c)

Calls on as many threads as there are cores leave none. A compiler beside them then gets what its niceness allows, and takes more
than it gets: each parallel loop waits for the thread that shares its core. Two cores of an EPYC, a decoder of 3 layers:

    threads of calls    niceness    calls, of their speed alone    seconds until the program of 19 kernels
    2                   14                                 0.92    over 14
    2                   10                                 0.75    over 13
    2                   5                                  0.55    11
    1                   19                                 0.56    2

Half of the cores for two seconds cost less than a part of them for many. A program is made once, and calls leave the core until
it is there. Kernels are made again and again: calls leave it a quarter of the time (background.REST).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from polytile import locks
from polytile.runtime import background, native, openmp
from polytile.runtime.cpu import usable_cores

_lock = locks.lock()
_wanted = 0
"""How many want it."""


@contextlib.contextmanager
def wanted() -> Iterator[None]:
    """Within the block another process works for the background's thread, on a core that calls of every thread leave if they
    would use them all."""
    begun = time.monotonic()
    _want(1)
    try:
        yield
    finally:
        _want(-1)
        background.background.helped += time.monotonic() - begun


def _after_fork() -> None:
    """In a forked child nobody works for it."""
    if _wanted:
        _want(-_wanted)


os.register_at_fork(after_in_child=_after_fork)


def is_wanted() -> bool:
    return _wanted > 0


def _want(more: int) -> None:
    global _wanted
    module = native.module(quietly=True)
    with _lock:
        _wanted += more
        if module is not None:
            module.leave_core(usable_cores() if _wanted > 0 else 0)


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Within the block, OpenMP's parallel loops of this thread leave a core, if they would use them all. Other threads are not
    concerned, nor is what `torch.set_num_threads` has set for new ones."""
    with openmp.at_most(max(1, usable_cores() - 1)):
        yield
