"""The OpenMP runtime that torch has brought into the process: threads of the parallel loops that the calling thread begins.

    at_most(n)          within the block, loops take at most n threads
    set_threads(n)      from now on loops take n threads
    end_team()          ends the threads that this thread's loops have left waiting

Other threads are not concerned, nor is what `torch.set_num_threads` has set for threads that have not used torch yet. Where there
is no such runtime, nothing changes.

GNU's runtime keeps the threads of a loop for the next one of the same thread, and lets them spin meanwhile. Where the process
has more such threads than the machine has cores, they sleep at once, and each loop waits until they are woken. So a second thread
that has run one loop slows down the loops of the first one for good. Two cores, the recommender of benchmarks/stream: 0.18 ms a
call alone, 0.39 to 0.57 ms beside a thread that had once run `sin` on two threads, and 0.18 ms again after `end_team` there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from polytile.runtime import pytorch

PAUSE_SOFT = 1
"""omp_pause_soft: threads end; settings stay."""

LLVMS_OWN = "__kmpc_fork_call"
"""A function that LLVM's and Intel's runtimes have and GNU's has not. They pause all threads of the process or none."""


@dataclass(frozen=True)
class Runtime:
    """Functions of the runtime. The number of threads is asked of torch, which sets that of a thread that it meets first."""

    set_threads: Callable[[int], None]
    pause: Callable[[int], int] | None
    """Ends this thread's team; None where the runtime cannot end one team alone."""


@functools.cache
def runtime() -> Runtime | None:
    """That of torch; None where torch has none."""
    for library in sorted((pytorch.folder() / "lib").glob("libtorch_cpu.*")):
        with contextlib.suppress(OSError, AttributeError):
            quick, slow = ctypes.PyDLL(str(library)), ctypes.CDLL(str(library))  # the first keeps Python's lock in a call
            pause = None if hasattr(quick, LLVMS_OWN) else getattr(slow, "omp_pause_resource_all", None)
            return Runtime(quick.omp_set_num_threads, pause)
    return None


@contextlib.contextmanager
def at_most(most: int) -> Iterator[None]:
    """Within the block, parallel loops that this thread begins take at most so many threads, torch's operators among them.

    On a machine whose cores are busy a parallel operator waits for a time slice of each: |a - b|.max() over 64 000 elements took
    48 ms on two threads and 48 µs on one (two cores, load 5)."""
    functions = runtime()
    before = pytorch.torch_threads()
    if functions is None or before <= most:
        yield
        return
    functions.set_threads(most)
    try:
        yield
    finally:
        functions.set_threads(before)


def set_threads(threads: int) -> None:
    """Has parallel loops that this thread begins take so many threads, as `torch.get_num_threads` says of it from now on."""
    functions = runtime()
    if functions is not None and pytorch.torch_threads() != threads:
        functions.set_threads(threads)


def end_team() -> None:
    """Ends the threads that parallel loops of this thread have left waiting; the next loop starts others. Must not be called
    within such a loop."""
    functions = runtime()
    if functions is not None and functions.pause is not None:
        functions.pause(PAUSE_SOFT)
