"""How long a GPU takes for a kernel: events around a replayed graph of calls, so that no launch is waited for.

A single call, and calls that cannot be recorded, are timed by events alone, behind a short wait on the device that lets
the host get ahead. With cold caches each call is timed by itself after the L2 cache was overwritten.
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


class Timer:
    """Times one native entry or Python callable on one device; keeps the graph that it recorded last."""

    def __init__(self, target: torch.device, cold: bool = False, graphs: bool = True) -> None:
        self.target, self.cold, self.graphs = target, cold, graphs
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self, entry: Any, args: Sequence[Any], repeats: int) -> float:
        """Seconds for `repeats` calls of `entry` with these arguments, on the current stream."""
        from polytile.runtime import launcher

        def calls(count: int) -> None:
            launcher.time_burst(entry, args, count)

        return self.seconds(calls, repeats)

    def seconds(self, calls: Callable[[int], Any], repeats: int) -> float:
        """Seconds for `calls(repeats)`, which does something on the current stream that many times."""
        with torch.cuda.device(self.target):
            if self.cold:
                return sum(self._timed(lambda: calls(1), flush=True) for _ in range(repeats))
            if repeats == 1 or not self.graphs:
                return self._timed(lambda: calls(repeats))
            if self._graph is None or self._calls != repeats:
                try:
                    self._graph, self._calls = recorded(lambda: calls(repeats)), repeats
                except RuntimeError as error:
                    log.info("A candidate is timed without a graph, which could not record it: %s", error)
                    self.graphs = False
                    return self._timed(lambda: calls(repeats))
            return self._timed(self._graph.replay)

    def _timed(self, work: Callable[[], Any], flush: bool = False) -> float:
        index = self.target.index or 0
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if flush:
            _flusher(index).zero_()
        torch.cuda._sleep(int(HEAD_START * facts(index).clock))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3


def recorded(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A graph of what `work` does on the current stream, ready to be replayed. Other threads may go on using the GPU."""
    graph, stream = torch.cuda.CUDAGraph(), _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
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
    it is called on, and keeps it."""
    return torch.cuda.Stream(index)


@functools.cache
def _flusher(index: int) -> torch.Tensor:
    """Twice the L2 cache's size of memory to write over."""
    return torch.empty(2 * facts(index).l2_bytes, dtype=torch.uint8, device=f"cuda:{index}")


__all__ = ["Timer", "recorded"]
