"""A core that calls leave free for a process that makes the program or kernels they wait for.

    wanted()            within the block, such a process works
    given_back()        within an inner block, it rests
    is_wanted()         whether one works
    leave_one_free()    within the block, ATen's operators leave a core free; generated kernels do so by themselves
                        (launcher.c)
    keep_to_one()       within the block, the background's operators use no more than that core

Calls that use as many threads as there are cores leave none free. A compiler beside them gets the share that its niceness
allows, but costs them more than that: every parallel loop waits for the thread that shares its core. So calls that have no
program yet leave a core free until it is ready: fewer threads for a short time cost less than shared cores for a long one
(docs/decisions/0019 has the measurement). Where programs serve most calls, for example while a second graph's program or
kernels for new regimes are made, the share of the time for which calls leave a core free is bounded (TAKEN in builder.py,
background.REST).

A program also has loops outside of its calls, such as those of an optimiser. They keep their threads, but a thread that
waits for the next loop must not spin on the free core: it spins for some milliseconds, longer than a call of a small model.
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
"""Number of processes that want a core."""


@contextlib.contextmanager
def wanted() -> Iterator[None]:
    """Marks the block in which this thread waits for another process that works for it. Calls that would use every core
    leave one free meanwhile."""
    begun = time.monotonic()
    _want(1)
    try:
        with openmp.asleep():
            yield
    finally:
        _want(-1)
        background.background.helped += (time.monotonic() - begun) / usable_cores()


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Marks the block in which the process that this thread waits for rests."""
    begun = time.monotonic()
    _want(-1)
    try:
        with openmp.awake():
            yield
    finally:
        _want(1)
        background.background.helped -= (time.monotonic() - begun) / usable_cores()


def _after_fork() -> None:
    """No process works for a forked child."""
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
def leave_one_free() -> Iterator[None]:
    """Makes parallel OpenMP loops of this thread leave a core free within the block. Other threads are unaffected, as
    is the `torch.set_num_threads` value for new ones."""
    with openmp.at_most(max(1, usable_cores() - 1)):
        yield


@contextlib.contextmanager
def keep_to_one() -> Iterator[None]:
    """Makes parallel OpenMP loops of this thread run on one thread within the block, unless no calls come. Beside other programs
    (two cores, load 6) 17 copies of 0.8 MB took 46 ms on two threads, which waited for cores at each, and 2.3 on one."""
    with openmp.at_most(usable_cores() if background.background.is_quiet() else 1):
        yield
