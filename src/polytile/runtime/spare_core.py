"""A core that calls leave to whoever makes a program which they wait for at the speed of ATen's operators.

Calls on as many threads as there are cores leave none. A compiler beside them then gets what its niceness allows, and takes more
than it gets: each parallel loop waits for the thread that shares its core. Two cores of an EPYC, a decoder of 3 layers:

    threads of calls    niceness    calls, of their speed alone    seconds until the program of 19 kernels
    2                   14                                 0.92    over 14
    2                   10                                 0.75    over 13
    2                   5                                  0.55    11
    1                   19                                 0.56    2

Half of the cores for two seconds cost less than a part of them for many.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

from polytile.runtime.cpu import usable_cores


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Within the block, OpenMP's parallel loops of this thread leave one of its cores alone, if they would use them all. Other
    threads are not concerned, nor is what `torch.set_num_threads` has set for new ones."""
    openmp = _openmp()
    most = openmp[0]() if openmp is not None else 1
    if openmp is None or most == 1 or most < usable_cores():
        yield
        return
    openmp[1](most - 1)
    try:
        yield
    finally:
        openmp[1](most)


@functools.cache
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """omp_get_max_threads and omp_set_num_threads of the runtime that torch has brought into the process."""
    process = ctypes.PyDLL(None)  # calls of a tenth of a microsecond, which keep Python's lock
    try:
        return process.omp_get_max_threads, process.omp_set_num_threads
    except AttributeError:
        return None
