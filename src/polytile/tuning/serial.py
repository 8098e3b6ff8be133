"""Running torch's own operators on one thread for a while, in this thread of the program alone.

On a machine whose cores are busy a parallel operator waits for a time slice of each: |a - b|.max() over 64 000 elements
took 48 ms on two threads and 48 µs on one (two cores, load 5). Checking candidates takes many small operators.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch's CPU operators called by this thread run on it alone.

    torch.set_num_threads would do that too, but threads that first use torch meanwhile would keep the number for good;
    this sets what OpenMP holds for the calling thread. Without OpenMP the block runs as it is.
    """
    functions = _openmp()
    if functions is None:
        yield
        return
    get, put = functions
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@functools.cache
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """omp_get_max_threads and omp_set_num_threads of the OpenMP runtime that torch uses."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            loaded = ctypes.CDLL(str(library))
            return loaded.omp_get_max_threads, loaded.omp_set_num_threads
        except (OSError, AttributeError):
            continue
    return None
