"""How long a GPU takes for a kernel: events around a replayed graph of calls, so that no launch is waited for.

A single launch, and calls that cannot be recorded, are timed by events alone, behind a short wait on the device that lets
the host get ahead. A single call of a library is replayed as well: it takes the host longer than that wait, and its first
calls, which decide how often it is called in a burst, ten times as long. With cold caches each call is timed by itself
after the L2 cache was overwritten.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polytile.runtime.cuda.device import facts

log = logging.getLogger("polytile.tuning")

HEAD_START = 20e-6
"""Seconds that the device waits before the first event: what the host takes to launch a graph."""

SLOW_CALL = 40e-6
"""What the host takes to start a call through Python, about; where such calls are timed as they come, the device waits for it."""

REPLAYS = 3
"""Times that a graph is replayed before the same calls are recorded anew. Where launches overlap, kernels of 1-3 µs have one of
two or three times, up to 10 % apart, and a recorded graph keeps its own: 1.30 or 1.44 µs for rows of 700 scaled on an H100, by
how one launch falls into the other. Drawn from six recordings each, the times of 30 kernels vary by 1.07 % from one, by 0.40 %
from eight."""


class Timer:
    """Times one native entry or Python callable on one device; keeps the graph that it recorded last, for some replays.
    `slow_start`: what the host takes to start a call may be longer than the head start, so that single calls are replayed too.

    All its recordings take memory, for scratch and what a library's call returns, from one pool: nothing of it is used once a
    replay has ended, and replays follow each other. Each had a pool of its own otherwise, whose memory stays reserved when the
    graph has gone. `release` gives it back to the device."""

    def __init__(self, target: torch.device, cold: bool = False, graphs: bool = True, slow_start: bool = False) -> None:
        self.target, self.cold, self.graphs, self.slow_start = target, cold, graphs, slow_start
        self._graph: torch.cuda.CUDAGraph | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._calls = self._replays = 0
        self._head_start = HEAD_START

    def __call__(self, entry: Any, args: Sequence[Any], repeats: int) -> float:
        """Seconds for `repeats` calls of `entry` with these arguments, on the current stream."""
        from polytile.runtime import launcher

        def calls(count: int) -> None:
            launcher.time_burst(entry, args, count)

        return self.seconds(calls, repeats)

    def release(self) -> None:
        """Forgets the graph, and then the memory that it was the last to use."""
        self._graph = None
        self._pool = None

    def seconds(self, calls: Callable[[int], Any], repeats: int) -> float:
        """Seconds for `calls(repeats)`, which does something on the current stream that many times."""
        with torch.cuda.device(self.target):
            if self.cold:
                return sum(self._timed(self._work(calls, 1), flush=True) for _ in range(repeats))
            return self._timed(self._work(calls, repeats))

    def _work(self, calls: Callable[[int], Any], count: int) -> Callable[[], Any]:
        """What does `calls(count)`: the replay of a graph, or the calls themselves."""
        if not self.graphs or (count == 1 and not self.slow_start):
            self._head_start = HEAD_START + (count * SLOW_CALL if self.slow_start else 0.0)
            return lambda: calls(count)
        self._head_start = HEAD_START
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
        if flush:
            _flusher(index).zero_()
        torch.cuda._sleep(int(self._head_start * facts(index).clock))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3


def recorded(work: Callable[[], Any], pool: torch.cuda.MemPool) -> torch.cuda.CUDAGraph:
    """A graph of what `work` does on the current stream with memory of `pool`, ready to be replayed, but not at the same time as
    others of that pool. Other threads may go on using the GPU."""
    graph, stream = torch.cuda.CUDAGraph(), _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")  # type: ignore[arg-type]  # a handle's type is private
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    return graph


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """Where graphs are recorded: one stream for all of them, as cuBLAS takes a workspace (32 MiB on an H100) for each stream that
    it is called on, in each thread, and keeps it. torch can give back all of them at once, the program's own too, and graphs
    that it has recorded go on using theirs."""
    return torch.cuda.Stream(index)


@functools.cache
def _flusher(index: int) -> torch.Tensor:
    """Twice the L2 cache's size of memory to write over."""
    return torch.empty(2 * facts(index).l2_bytes, dtype=torch.uint8, device=f"cuda:{index}")
