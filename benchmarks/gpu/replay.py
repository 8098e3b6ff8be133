"""Kernel time: a CUDA graph of ten calls, replayed in turns with the others, by events.

Where a call's results lie in memory may decide 15 % of its time: of seventeen graphs of softmaxes of 16384×1024 bfloat16 in one
process twelve took 21.0 to 21.9 µs and five 23.6 to 24.5, in another sixteen of one kernel took 24.3 to 24.5 (an H100). So each
contestant is recorded several times, with memory of its own, and counts as the mean. Ratios of contestants of one process say
more than those of two.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.timing import compare
from polytile.runtime.cuda.timing import generator_set_aside

CALLS = 10
PLACES = 3
"""Graphs of a contestant, each with memory of its own."""
LEAST, ENOUGH = 6, 30e3
"""Replays of a contestant at least, and the µs of them after which no more are made."""
SLEEP_CYCLES = 400_000
"""About 200 µs of waiting on the device before the first event, in which even a busy host has launched the graph."""

Call = Callable[[], Any]


def recorded(call: Call) -> torch.cuda.CUDAGraph:
    """A graph of CALLS calls; call it first, so that nothing is compiled or tuned while recording."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with generator_set_aside(), torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def timed(replay: Call) -> float:
    """Microseconds of one replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def kernel_times(calls: Mapping[str, Call], rounds: int = 15, places: int = PLACES) -> dict[str, float]:
    """Microseconds of one call of each: the median over the replays of a graph, of `rounds` for all graphs of a call, or fewer of
    slow ones, taken in turns; the mean of these over its `places` graphs. A call that cannot be recorded is left out."""
    graphs: dict[str, list[torch.cuda.CUDAGraph]] = {}
    for name, call in calls.items():
        try:
            graphs[name] = [recorded(call) for _ in range(places)]
        except Exception as error:
            torch.cuda.synchronize()
            print(f"  {name} cannot be recorded: {type(error).__name__}: {str(error)[:200]}", flush=True)
    samples: dict[str, list[list[float]]] = {name: [[] for _ in range(places)] for name in graphs}
    order = list(graphs)
    for turn in range(max(rounds, places)):
        place = turn % places
        for name in order if turn % 2 else reversed(order):
            if turn < LEAST or sum(map(sum, samples[name])) * CALLS < ENOUGH:
                samples[name][place].append(timed(graphs[name][place].replay) / CALLS)
    return {name: statistics.mean(map(statistics.median, taken)) for name, taken in samples.items()}


def wall_times(calls: Mapping[str, Call], seconds: float = 0.3) -> dict[str, float]:
    """Microseconds of one call of each as a program makes them, several in a row, in turns: what the host takes to launch the
    kernels, with Dynamo's guards, unless the device takes longer."""
    return {name: timing.low * 1e6 for name, timing in compare(calls, seconds=seconds).timings.items()}


def copy_bandwidth(megabytes: int = 1024) -> float:
    """Bytes a second, read plus written, of a device copy."""
    source = torch.randn(megabytes << 18, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(timed(lambda: target.copy_(source)) for _ in range(10))
    return 2 * source.numel() * 4 / (best * 1e-6)
