"""Races of whole calls: compiled code against the function itself, so that compiling makes no call slower.

For small tensors on a CPU, what surrounds the kernels may take longer than eager does. Calls are counted by the sizes of their
tensors (runtime/entry.c). When calls of some sizes are frequent and their kernels are decided, some of them run the compiled
code and some the function, in turns. Both give the call's result, so no call is made only for the race. The faster one serves
calls of these sizes from then on, until Dynamo compiles something new.

There are no races for calls whose results need gradients, as the time of the backward pass is not seen here, nor on other
devices, where the host's clock says little. There are none either if the same kernels have to run in every process.
"""

from __future__ import annotations

import statistics
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
"""How much longer the best of the function's first few calls may take before the race is over. The first ones start threads and
fill caches: two of them were up to a thousand times as long as the third, and lost races that the function wins by a fifth."""
CLOSE, MOST_TURNS = 0.03, 60
"""A race stays open while the times differ by less than this share, up to this many calls of each."""


def allowed() -> bool:
    """Whether calls may be raced under the options in force."""
    alone = options.get("tune") != "off" and early.waits_for() != "compile" and not agreement.wanted()
    return alone and bool(options.get("race_eager"))


def _low(times: Sequence[int]) -> float:
    """The 15th percentile, which other processes' work hardly reaches."""
    return statistics.quantiles(times, n=20, method="inclusive")[2]


@dataclass
class Race:
    """The race of calls of some sizes. Times are in nanoseconds."""

    compiled: list[int] = field(default_factory=list)
    function: list[int] = field(default_factory=list)

    @property
    def turn_of_function(self) -> bool:
        return len(self.function) < len(self.compiled)

    def function_is_faster(self) -> bool | None:
        """The result; None while it is open."""
        if len(self.function) == HOPELESS_AFTER and min(self.function) > HOPELESS * min(self.compiled):
            return False
        turns = min(len(self.function), len(self.compiled))
        if turns < TURNS:
            return None
        ratio = _low(self.function) / _low(self.compiled)
        return None if turns < MOST_TURNS and abs(ratio - 1) < CLOSE else ratio < 1


class Races:
    """The races of a function, whose calls `entry` counts and declines for them."""

    def __init__(self, entry: Any, function: Callable[..., Any]) -> None:
        self.entry, self.function = entry, function
        self.won = 0
        """Number of sizes whose calls the function itself serves."""
        self._open: dict[int, Race] = {}

    def run(self, key: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call that `entry` declined for a race: its result; DECLINED where it has to go through torch.compile."""
        race = self._open.get(key)
        if race is None:
            if not learning.is_settled():
                self.entry.postpone(key)
                return self.entry.compiled(*args, **kwargs)
            race = self._open[key] = Race()
        times = race.compiled
        if race.turn_of_function and self.entry.find(*args, **kwargs):
            begun, result, times = perf_counter_ns(), self.function(*args, **kwargs), race.function
        else:
            begun, result = perf_counter_ns(), self.entry.compiled(*args, **kwargs)
        taken = perf_counter_ns() - begun
        if result is DECLINED:
            return result
        times.append(taken)
        self._judge(key, race, result)
        return result

    def _judge(self, key: int, race: Race, result: Any) -> None:
        faster = False if torch.are_deterministic_algorithms_enabled() or _needs_gradient(result) else race.function_is_faster()
        if faster is not None:
            self.entry.settle(key, faster)
            self.won += faster
            self._open.pop(key, None)


def _needs_gradient(result: Any) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in _pytree.tree_leaves(result)
    )
