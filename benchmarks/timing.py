"""Times callables against one another, in interleaved bursts, on machines that other work disturbs.

The noise of a shared machine is one-sided and comes in stretches: a neighbour slows everything by a third for seconds
at a time. So the callables take turns, a short burst each, and a stretch hits all of them; each is summarised by the
15th percentile of its bursts, which such stretches hardly reach and one lucky burst does not either. How much of the
machine other processes used meanwhile is measured and returned with the result.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from polytile.store import summary

Call = Callable[[], object]
LOW = summary.QUANTILE


FIRST_CALLS = 5
"""Calls of which the shortest says how many make a burst. A first one may take a hundred times as long, beside the threads of
whoever ran before, which spin for some milliseconds; and a burst of one call is as slow every time."""


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the samples lie, linear between samples. Raises ValueError for none."""
    if not samples:
        raise ValueError("a quantile of no samples was asked for; time at least one burst.")
    return summary.quantile(samples, fraction)


geomean = statistics.geometric_mean


@dataclass(frozen=True)
class Timing:
    """Seconds a call in each burst of one callable, in the order they were taken."""

    name: str
    samples: tuple[float, ...]
    calls_per_burst: int

    @property
    def low(self) -> float:
        """The 15th percentile: the number to report."""
        return quantile(self.samples, LOW)

    @property
    def median(self) -> float:
        return quantile(self.samples, 0.5)

    @property
    def spread(self) -> float:
        """Interquartile range over the median: 0.05 means that half of the bursts lie within 5 %."""
        return (quantile(self.samples, 0.75) - quantile(self.samples, 0.25)) / self.median


@dataclass(frozen=True)
class Comparison:
    """Timings of callables that took turns. `others` is how many cores other processes kept busy meanwhile."""

    timings: dict[str, Timing]
    others: float

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def ratio(self, name: str, base: str) -> float:
        """Time of `base` over time of `name`: above 1, `name` is the faster one."""
        return self[base].low / self[name].low

    def as_json(self) -> dict[str, object]:
        rows = {
            name: {
                "seconds": timing.low,
                "median": timing.median,
                "spread": round(timing.spread, 4),
                "bursts": len(timing.samples),
                "calls_per_burst": timing.calls_per_burst,
            }
            for name, timing in self.timings.items()
        }
        return {"timings": rows, "cores_used_by_others": round(self.others, 3)}


def disturbance(comparisons: Iterable[Comparison]) -> str:
    """A sentence for under a table: how busy other processes were, at most, while its numbers were taken."""
    return disturbance_of(one.others for one in comparisons)


def disturbance_of(cores: Iterable[float]) -> str:
    """The same of the cores that other processes kept busy during each comparison."""
    return f"Other processes used at most {max(cores):.2f} cores meanwhile."


@dataclass(frozen=True)
class Elsewhere:
    """A call in another process: `burst` gives the seconds a call of so many in a row there, `processor` the processor seconds
    that the process has used so far."""

    process: int
    burst: Callable[[int], float]
    processor: Callable[[], float]

    def __call__(self) -> None:
        self.burst(1)


class OtherLoad:
    """Cores that processes other than this one (its finished children, and those that it has calls in) keep busy; 0 where
    /proc/stat is missing."""

    def __init__(self, helpers: Iterable[Elsewhere] = ()) -> None:
        self._helpers = {helper.process: helper for helper in helpers}
        self._started = time.perf_counter()
        self._busy = self._machine()
        self._own = self._process()

    def cores(self) -> float:
        """Average since this object was made."""
        elapsed = time.perf_counter() - self._started
        if elapsed <= 0:
            return 0.0
        return max(0.0, ((self._machine() - self._busy) - (self._process() - self._own)) / elapsed)

    @staticmethod
    def _machine() -> float:
        """CPU seconds the whole machine has spent working."""
        try:
            user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
        except (OSError, ValueError):
            return 0.0
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def _process(self) -> float:
        return processor_seconds() + sum(helper.processor() for helper in self._helpers.values())


def processor_seconds() -> float:
    """What this process and its finished children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def synchronize() -> None:
    """Waits for the accelerator, where there is one in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def burst(call: Call, calls: int) -> float:
    """Seconds a call of `calls` calls in a row, device work included."""
    if isinstance(call, Elsewhere):
        return call.burst(calls)
    synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize()
    return (time.perf_counter() - started) / calls


def compare(
    calls: Mapping[str, Call],
    *,
    seconds: float = 0.5,
    burst_seconds: float = 2e-3,
    warmups: int = 2,
    min_rounds: int = 5,
    max_rounds: int = 400,
) -> Comparison:
    """Times `calls`, which take turns, for about `seconds` in all (at least `min_rounds` bursts each).

    A burst repeats one call until `burst_seconds` have passed (a call that takes longer makes a burst by itself) and is
    preceded by one untimed call, which brings its data back into the caches that the others used. The order of turns
    is reversed each round.
    """
    for call in calls.values():
        for _ in range(warmups):
            call()
    shortest = {name: min(burst(call, 1) for _ in range(FIRST_CALLS)) for name, call in calls.items()}
    sizes = {name: max(1, math.ceil(burst_seconds / seconds)) for name, seconds in shortest.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    load = OtherLoad(call for call in calls.values() if isinstance(call, Elsewhere))
    started = time.perf_counter()
    order = list(calls)
    for number in range(max_rounds):
        if number >= min_rounds and time.perf_counter() - started > seconds:
            break
        for name in order if number % 2 == 0 else reversed(order):
            if sizes[name] > 1:
                calls[name]()
            samples[name].append(burst(calls[name], sizes[name]))
    others = load.cores()
    return Comparison({name: Timing(name, tuple(samples[name]), sizes[name]) for name in calls}, others)


__all__ = [
    "Comparison", "Elsewhere", "OtherLoad", "Timing", "burst", "compare", "disturbance", "geomean", "processor_seconds",
    "quantile", "synchronize",
]  # fmt: skip
