"""Races of whole calls: compiled code against the function itself, so that compiling makes no call slower.

For small tensors, what surrounds the kernels may take longer than eager does, and the parts of a function with graph breaks may
be too small to gain anything. Calls are counted by the sizes of their tensors (runtime/entry.c). When calls of some sizes are
frequent and their kernels are decided, some of them run the compiled code and some the function, in turns. Both give the call's
result, so no call is made only for the race. The faster one serves calls of these sizes from then on, until Dynamo compiles
something new.

On a CPU a call is timed by the host's clock. On a GPU it is timed by two events on its stream, which are read at later calls, so
that no call waits. If the host is ahead, they measure the time of the kernels. If the GPU waits for the host, they measure when
the result is there, and the call counts as the mean of that and the host's time: a loop that waits for each result has the one
time a call, and a loop that goes on has the other.

There are no races for calls whose results need gradients, as the time of the backward pass is not seen here. There are none
either if the same kernels have to run in every process.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils import _pytree

from polytile import options
from polytile.compiler import early
from polytile.dispatch import agreement, learning
from polytile.runtime.entry import DECLINED

TURNS = 12
"""Calls of each in a race."""
HOPELESS, HOPELESS_AFTER = 1.5, 4
"""How much longer the best of the function's first few calls may take than compiled code before the race is over. The first
ones start threads and fill caches: two of them were up to a thousand times as long as the third, and lost races that the
function wins by a fifth."""
CLOSE, MOST_TURNS = 0.03, 60
"""A race stays open while the times differ by less than this share, up to this many calls of each."""


def allowed() -> bool:
    """Whether calls may be raced under the options in force."""
    alone = options.get("tune") != "off" and early.waits_for() != "compile" and not agreement.wanted()
    return alone and bool(options.get("race_eager"))


@dataclass
class Race:
    """The race of calls of some sizes on a CPU. Times are in nanoseconds."""

    compiled: list[float] = field(default_factory=list)
    function: list[float] = field(default_factory=list)

    @property
    def turn_of_function(self) -> bool:
        return len(self.function) < len(self.compiled)

    def typical(self, times: Sequence[float]) -> float:
        """What is compared: the 15th percentile, which other processes' work hardly reaches."""
        return statistics.quantiles(times, n=20, method="inclusive")[2]

    def timed(self, times: list[float], call: Callable[[], Any]) -> Any:
        """The result of `call`, whose time is added to `times` unless it is DECLINED."""
        begun = perf_counter_ns()
        result = call()
        taken = perf_counter_ns() - begun
        if result is not DECLINED:
            times.append(taken)
        return result

    def function_is_faster(self) -> bool | None:
        """The result; None while it is open."""
        turns = min(len(self.function), len(self.compiled))
        if turns >= HOPELESS_AFTER and min(self.function) > HOPELESS * self.typical(self.compiled):
            return False
        if turns < TURNS:
            return None
        ratio = self.typical(self.function) / self.typical(self.compiled)
        return None if turns < MOST_TURNS and abs(ratio - 1) < CLOSE else ratio < 1


@dataclass
class StreamRace(Race):
    """The race of calls whose kernels run on `stream`."""

    stream: torch.cuda.Stream | None = None
    _pending: deque[tuple[list[float], torch.cuda.Event, torch.cuda.Event, float | None]] = field(default_factory=deque)
    """Calls that the GPU had not finished when their events were last read, the first first, with the host's time; None where
    the host was ahead."""

    @property
    def turn_of_function(self) -> bool:
        ahead = sum(1 if times is self.function else -1 for times, *_ in self._pending)
        return len(self.function) + ahead < len(self.compiled)

    def typical(self, times: Sequence[float]) -> float:
        """The median. The shortest calls met a full queue, and do not show the host's time."""
        return statistics.median(times)

    def timed(self, times: list[float], call: Callable[[], Any]) -> Any:
        """The result of `call`. Its time is added when `function_is_faster` is asked after the GPU has finished."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(self.stream)
        begun = perf_counter_ns()
        result = call()
        host = perf_counter_ns() - begun if first.query() else None
        last.record(self.stream)
        if result is not DECLINED:
            self._pending.append((times, first, last, host))
        return result

    def function_is_faster(self) -> bool | None:
        while self._pending and self._pending[0][2].query():
            times, first, last, host = self._pending.popleft()
            elapsed = first.elapsed_time(last) * 1e6
            times.append(elapsed if host is None else (elapsed + host) / 2)
        return super().function_is_faster()


class Races:
    """The races of a function, whose calls `entry` counts and declines for them. `compiled` runs what was compiled of it."""

    def __init__(self, entry: Any, function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self.entry, self.function, self.compiled = entry, function, compiled
        self.won = 0
        """Number of sizes whose calls the function itself serves."""
        self._open: dict[int, Race] = {}

    def run(self, key: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call that `entry` declined for a race: its result; DECLINED where it has to go through torch.compile."""
        stream = _stream_of((*args, *kwargs.values()))
        if stream is not None and torch.cuda.is_current_stream_capturing():
            return self.compiled(*args, **kwargs)
        race = self._open.get(key)
        if race is None:
            if not learning.is_settled():
                self.entry.postpone(key)
                return self.compiled(*args, **kwargs)
            race = self._open[key] = Race() if stream is None else StreamRace(stream=stream)
        times, called = race.compiled, self.compiled
        if race.turn_of_function and self.entry.find(*args, **kwargs):
            times, called = race.function, self.function
        result = race.timed(times, lambda: called(*args, **kwargs))
        if result is not DECLINED:
            self._judge(key, race, result)
        return result

    def _judge(self, key: int, race: Race, result: Any) -> None:
        faster = False if torch.are_deterministic_algorithms_enabled() or _needs_gradient(result) else race.function_is_faster()
        if faster is not None:
            self.entry.settle(key, faster)
            self.won += faster
            self._open.pop(key, None)


def _stream_of(values: Sequence[Any]) -> torch.cuda.Stream | None:
    """The current stream of the GPU that a call's first tensor on one is on; None where there is none."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return torch.cuda.current_stream(value.device)
    return None


def _needs_gradient(result: Any) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in _pytree.tree_leaves(result)
    )
