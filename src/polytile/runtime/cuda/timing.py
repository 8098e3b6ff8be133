"""Times kernels on a GPU: events around a replayed graph of calls, so that launch overhead does not count.

A single launch, or calls that cannot be recorded, are timed by events alone. The stream is held (hold.py) until everything is
on it: neither the host's time for a launch nor a wait for Python's lock counts. With cold caches, each call is timed
separately after the L2 cache was overwritten.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from polytile.runtime.cuda.device import facts
from polytile.runtime.cuda.hold import held

log = logging.getLogger("polytile.tuning")

REPLAYS = 3
"""Number of replays of a graph before the same calls are recorded again. Where launches overlap, a kernel of 1-3 µs has
two or three typical times, up to 10 % apart, and a recorded graph stays with one of them: 1.30 or 1.44 µs for scaling
rows of 700 on an H100, depending on how consecutive launches interleave. Drawn from six recordings each, the times of
30 kernels vary by 1.07 % with one recording and by 0.40 % with eight."""

HOLDS: tuple[float, ...] = (0.1, 0.5)
"""Seconds that the stream is held at most: first, and once the host took longer. Beside a thread that computes in Python each
launch may wait 5 ms for Python's lock, twenty of them 0.1 s. Calls that take longer than the second wait for the device."""


class Timer:
    """Times a native entry or Python callable on one device. Reuses its last graph for some replays.

    All recordings allocate scratch memory and library results from one pool: none of it is used after a replay has
    ended, and replays do not overlap. With a pool per graph, the memory would stay reserved after the graph is gone.
    `release` returns it to the device.
    """

    def __init__(self, target: torch.device, cold: bool = False, graphs: bool = True) -> None:
        self.target, self.cold, self.graphs = target, cold, graphs
        self._graph: torch.cuda.CUDAGraph | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._calls = self._replays = 0
        self._holds = HOLDS
        """What is left of HOLDS to try; nothing for calls that wait for the device."""

    def __call__(self, entry: Any, args: Sequence[Any], repeats: int) -> float:
        """Seconds for `repeats` calls of `entry` with these arguments, on the current stream."""
        from polytile.runtime import launcher

        def calls(count: int) -> None:
            launcher.time_burst(entry, args, count)

        return self.seconds(calls, repeats)

    def release(self) -> None:
        """Drops the graph and the memory pool."""
        self._graph = None
        self._pool = None

    def seconds(self, calls: Callable[[int], Any], repeats: int) -> float:
        """Seconds for `calls(repeats)`, which does something `repeats` times on the current stream."""
        with torch.cuda.device(self.target):
            if self.cold:
                return sum(self._timed(self._work(calls, 1), flush=True) for _ in range(repeats))
            return self._timed(self._work(calls, repeats))

    def _work(self, calls: Callable[[int], Any], count: int) -> Callable[[], Any]:
        """A callable that does `calls(count)`: a graph's replay, or the calls themselves."""
        if not self.graphs or count == 1:
            return lambda: calls(count)
        self._replays += 1
        if self._graph is None or self._calls != count or self._replays > REPLAYS:
            try:
                self._pool = self._pool or torch.cuda.MemPool()
                self._graph, self._calls, self._replays = recorded(lambda: calls(count), self._pool), count, 1
            except RuntimeError as error:
                log.info("A candidate is timed without a graph, which could not record it: %s", error)
                self.graphs = False
                return lambda: calls(count)
        return self._graph.replay

    def _timed(self, work: Callable[[], Any], flush: bool = False) -> float:
        index = self.target.index or 0
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        while True:
            if flush:
                _flusher(index).zero_()
            before, longest = time.monotonic(), next(iter(self._holds), None)
            with contextlib.nullcontext() if longest is None else held(index, longest):
                begin.record()
                work()
                end.record()
            if longest is None or time.monotonic() - before < longest:
                end.synchronize()
                return begin.elapsed_time(end) * 1e-3
            self._holds = self._holds[1:]


def recorded(work: Callable[[], Any], pool: torch.cuda.MemPool) -> torch.cuda.CUDAGraph:
    """A graph of `work` on the current stream, with memory of `pool`. It must not be replayed at the same time as other
    graphs of that pool. Other threads may continue to use the GPU."""
    graph, stream = torch.cuda.CUDAGraph(), _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), generator_set_aside():
        graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")  # type: ignore[arg-type]  # a handle's type is private
        try:
            work()
        finally:
            _end(graph, pool)
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    return graph


def _end(graph: torch.cuda.CUDAGraph, pool: torch.cuda.MemPool) -> None:
    """Ends a recording. One that failed raises here, and torch leaves its allocator at it: the process would abort as soon as
    memory of any pool is released."""
    try:
        graph.capture_end()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):  # raised by a torch that has left the allocator in order
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool.id)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool.id)
        raise


@contextlib.contextmanager
def generator_set_aside() -> Iterator[None]:
    """A recording within this context draws random numbers from a copy of the current device's default generator.

    A recording puts the generator into a mode that only its proper end leaves. After one that fails (a call that waits for the
    device cannot be recorded), every later draw of the process would raise "Offset increment outside graph capture".
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """The stream on which graphs are recorded. It is shared because cuBLAS allocates a workspace (32 MiB on an H100)
    for each stream and thread, and keeps it. torch can only free all workspaces at once, including the program's own,
    while graphs recorded with them still use them."""
    return torch.cuda.Stream(index)


@functools.cache
def _flusher(index: int) -> torch.Tensor:
    """A buffer of twice the L2 cache's size, to overwrite."""
    return torch.empty(2 * facts(index).l2_bytes, dtype=torch.uint8, device=f"cuda:{index}")
