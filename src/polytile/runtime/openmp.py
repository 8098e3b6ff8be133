"""The OpenMP runtime that torch loads: the number of threads of parallel loops started by the calling thread.

    at_most(n)          within the block, loops use at most n threads
    set_threads(n)      from now on, loops use n threads
    end_team()          ends the threads that this thread's loops have left waiting
    is_crowded(n)       whether loops of n threads on two threads slow down each other
    asleep()            within the block, threads sleep between loops instead of spinning
    awake()             within a block within that one, they spin

Except by `asleep`, other threads are unaffected, as is the `torch.set_num_threads` value for threads that have not used
torch yet. Without such a runtime nothing changes.

GNU's runtime keeps a loop's threads spinning for the same thread's next loop. If the process has more such threads than
the machine has cores, they sleep at once, and each loop waits for them to wake up. So a second thread that has run one
loop slows down the first one's loops permanently. On two cores, the recommender of benchmarks/stream takes 0.18 ms a
call alone, 0.39 to 0.57 ms beside a thread that once ran `sin` on two threads, and 0.18 ms again after `end_team` on
that thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from polytile.runtime import pytorch
from polytile.runtime.cpu import usable_cores

PAUSE_SOFT = 1
"""omp_pause_soft: ends threads, keeps settings."""

LLVMS_OWN = "__kmpc_fork_call"
"""A function of LLVM's and Intel's runtimes that GNU's lacks. They can only pause all threads of the process."""


@dataclass(frozen=True)
class Runtime:
    """Functions of the runtime. The number of threads is read from torch, which initialises it for each new thread."""

    set_threads: Callable[[int], None]
    pause: Callable[[int], int] | None
    """Ends this thread's team; None if the runtime cannot end a single team."""
    run_empty: Callable[[int], None] | None
    """Runs an empty loop on this many threads, which become this thread's team; None if the runtime cannot end a single
    team."""
    set_mkl_threads: Callable[[int], int]
    """Sets the number of threads of MKL's functions that this thread calls; 0 for what `torch.set_num_threads` has set for
    all threads. Returns the number that was set before."""


@functools.cache
def runtime() -> Runtime | None:
    """torch's OpenMP runtime; None if it has none."""
    for library in sorted((pytorch.folder() / "lib").glob("libtorch_cpu.*")):
        with contextlib.suppress(OSError, AttributeError):
            quick, slow = ctypes.PyDLL(str(library)), ctypes.CDLL(str(library))  # a PyDLL call keeps the GIL
            pause = None if hasattr(quick, LLVMS_OWN) else getattr(slow, "omp_pause_resource_all", None)
            set_mkl_threads = getattr(quick, "MKL_Set_Num_Threads_Local", lambda threads: 0)
            return Runtime(quick.omp_set_num_threads, pause, _empty_loop(slow) if pause else None, set_mkl_threads)
    return None


def _empty_loop(library: ctypes.CDLL) -> Callable[[int], None]:
    """A function that runs a loop without a body by GNU's runtime. `omp_get_level` stands for the body: it does nothing."""
    parallel, body = library.GOMP_parallel, ctypes.cast(library.omp_get_level, ctypes.c_void_p)
    return lambda threads: parallel(body, None, ctypes.c_uint(threads), ctypes.c_uint(0))


@contextlib.contextmanager
def at_most(most: int) -> Iterator[None]:
    """Limits parallel loops started by this thread within the block, those of torch's operators and of MKL included, to
    `most` threads. MKL has a number of its own, which `torch.set_num_threads` sets for all threads.

    On a machine with busy cores, a parallel operator waits for a time slice of each: |a - b|.max() over 64 000 elements
    took 48 ms on two threads and 48 µs on one (two cores, load 5).
    """
    functions = runtime()
    before = pytorch.torch_threads()
    if functions is None or before <= most:
        yield
        return
    functions.set_threads(most)
    mkl_before = functions.set_mkl_threads(most)
    try:
        yield
    finally:
        functions.set_mkl_threads(mkl_before)
        functions.set_threads(before)


def set_threads(threads: int) -> None:
    """Sets the number of threads of parallel loops started by this thread. `torch.get_num_threads` reports it from now on."""
    functions = runtime()
    if functions is not None and pytorch.torch_threads() != threads:
        functions.set_threads(threads)


def end_team() -> None:
    """Ends the threads that this thread's parallel loops have left waiting; the next loop starts new ones. Must not be
    called within a parallel loop."""
    functions = runtime()
    if functions is not None and functions.pause is not None:
        functions.pause(PAUSE_SOFT)


def is_crowded(threads: int) -> bool:
    """Whether the process has more threads than cores once two of its threads have run loops of so many threads. Each loop then
    takes longer to start, 30 µs on two cores."""
    functions = runtime()
    return functions is not None and functions.pause is not None and threads > 1 and 2 * threads - 1 > usable_cores()


@contextlib.contextmanager
def asleep() -> Iterator[None]:
    """Within the block, the threads of all loops in this process sleep from the end of a loop to the next, as long as there
    are as many of them as cores. A loop then takes 50 µs longer to start.

    GNU's runtime has no function for this. It lets threads sleep where the process has more of them than the machine has
    cores: this thread keeps a team that it does not use. It runs no loop of its own within the block.
    """
    functions = runtime()
    if functions is None or functions.run_empty is None:
        yield
        return
    functions.run_empty(2)
    try:
        yield
    finally:
        end_team()


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Suspends the enclosing `asleep` of this thread within the block."""
    functions = runtime()
    end_team()
    try:
        yield
    finally:
        if functions is not None and functions.run_empty is not None:
            functions.run_empty(2)
