"""Timing candidates against each other: bursts of back-to-back calls, taken in turns, so that noise meets all alike.

`time_burst` is the one place where a clock is read. A test or a user may replace it (SPEC M7); the selector then asks
for the times of every candidate, believes them, and stores none of them.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile import options
from polytile.kernels.candidate import Entry, PythonEntry
from polytile.store.summary import low_quantile, summarise


@dataclass(frozen=True)
class Contender:
    """A candidate ready to be timed: its entry and the flat arguments to call it with.

    `restore`, if any, puts the arguments back between bursts, for kernels that change what they read. `timer`, if any,
    takes the time of a burst on a GPU: (entry, arguments, repeats) → seconds.
    """

    name: str
    entry: Entry
    args: tuple[Any, ...]
    restore: Callable[[], None] | None = None
    timer: Callable[[Entry, tuple[Any, ...], int], float] | None = None


@dataclass(frozen=True)
class Limits:
    """How long a race may take. Four candidates of 10 µs take about 20 ms, of 1 ms about 50 ms, of 0.5 s about 3 s."""

    burst_seconds: float = 100e-6
    """A burst of a short kernel repeats it until it takes about so long; a longer kernel is called once."""
    max_repeats: int = 1000
    warm_seconds: float = 1e-3
    """Kernels shorter than this get an untimed call before each burst, so that the one before leaves no trace."""
    rounds: int = 40
    """Bursts of each candidate at most."""
    trial_rounds: int = 5
    """Bursts of each candidate before clear losers are dropped."""
    sure_rounds: int = 3
    """Bursts of each candidate still racing when the time is up."""
    seconds: float = 0.04
    """When so much time is spent, only the `sure_rounds` are still taken."""
    longest: float = 3.0
    """When so much time is spent, the race ends with whatever it has; each candidate has one burst at least."""
    clear_loser: float = 1.10
    """Dropped after the trial rounds: a candidate whose fastest burst is slower than this times the leader's median."""
    hopeless: float = 3.0
    """Dropped after one call: a kernel of more than `warm_seconds` that takes this many times the fastest."""
    gated: bool = True
    """Whether a burst in which the scheduler took the processor away is discarded: it says nothing about a GPU."""


LIMITS = Limits()

GPU_LIMITS = Limits(burst_seconds=200e-6, max_repeats=20, warm_seconds=0.0, rounds=25, seconds=0.08, gated=False)
"""A burst is one replay of a graph of up to 20 calls: more would take longer to record than to run. Six candidates of
10 µs take about 60 ms, recording included. Nothing is dropped after one call: the first may carry the driver's own work."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call of each burst, their low quantile and its relative error; or what was raised."""

    samples: tuple[float, ...] = ()
    seconds: float = float("nan")
    noise: float = float("inf")
    error: Exception | None = None


def time_burst(contender: Contender, repeats: int) -> float:
    """Seconds that `repeats` back-to-back calls take. Replaceable: measurements are made by whatever stands here."""
    from polytile.runtime import launcher

    if contender.timer is not None:
        return contender.timer(contender.entry, contender.args, repeats)
    return launcher.time_burst(contender.entry, contender.args, repeats)


def timer_for(target: torch.device, entry: Entry) -> Callable[[Entry, tuple[Any, ...], int], float] | None:
    """A contender's own timer on the device `target`; None on a CPU, where bursts are timed by the clock."""
    if target.type != "cuda":
        return None
    from polytile.runtime.cuda.timing import Timer

    return Timer(target, cold=options.get("gpu_cache") == "cold", graphs=not isinstance(entry, PythonEntry))


_own_time_burst = time_burst
clock = time.perf_counter
"""Measures how long the race itself has taken."""

_one_race_at_a_time = threading.RLock()


def replaced() -> bool:
    """Whether `time_burst` is not polytile's own."""
    return time_burst is not _own_time_burst


def race(contenders: Sequence[Contender], limits: Limits = LIMITS) -> list[Timing]:
    """Times the contenders, in the order given. Each must have run before: nothing is warmed up for the first time
    here.

    An exception of one contender ends its part in the race and is returned; KeyboardInterrupt passes through.
    """
    # A candidate may call another MultiKernel, which then races within this race: the lock must be reentrant. Nor may
    # it be waited for without end: whoever holds it may be waiting for a MultiKernel that this thread is choosing for.
    alone = _one_race_at_a_time.acquire(timeout=limits.longest)
    try:
        return _Race(contenders, limits).run()
    finally:
        if alone:
            _one_race_at_a_time.release()


class _Lane:
    """One contender's bursts so far."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.samples: list[float] = []
        self.discarded = 0
        self.repeats = 1
        self.warm = False
        self.racing = True
        self.gated = True
        self.error: Exception | None = None

    def calibrate(self, limits: Limits) -> None:
        """Two single calls, or one of a long kernel, decide how many make a burst. They are no samples, except where a
        burst is one call."""
        self.gated = limits.gated
        call = self.burst(1)
        if call < limits.seconds:
            call = min(call, self.burst(1))
        if not self.racing:
            return
        call = max(call, 1e-9)
        self.repeats = max(1, min(limits.max_repeats, round(limits.burst_seconds / call)))
        self.warm = call < limits.warm_seconds
        if self.repeats == 1:
            self.samples.append(call)

    def burst(self, repeats: int) -> float:
        """Seconds for `repeats` calls; on an exception the lane leaves the race."""
        try:
            if self.contender.restore is not None:
                self.contender.restore()
            if self.warm:
                time_burst(self.contender, 1)
            return time_burst(self.contender, repeats)
        except Exception as error:
            self.racing, self.error = False, error
            return float("inf")

    def sample(self) -> None:
        """Takes a burst. One in which the scheduler took the processor away is discarded, if not more than half are."""
        before = _involuntary_switches()
        seconds = self.burst(self.repeats)
        if not self.racing:
            return
        if self.gated and _involuntary_switches() != before and self.discarded <= len(self.samples):
            self.discarded += 1
            return
        self.samples.append(seconds / self.repeats)

    def timing(self) -> Timing:
        seconds, noise = summarise(self.samples)
        return Timing(tuple(self.samples), seconds, noise, self.error)


class _Race:
    def __init__(self, contenders: Sequence[Contender], limits: Limits) -> None:
        self.limits = limits
        self.lanes = [_Lane(contender) for contender in contenders]
        self.started = clock()

    @property
    def racing(self) -> list[_Lane]:
        return [lane for lane in self.lanes if lane.racing]

    def run(self) -> list[Timing]:
        for lane in self.lanes:
            lane.calibrate(self.limits)
        self._drop_hopeless()
        for turn in range(self.limits.rounds):
            racing = self.racing
            if not racing or (turn and self._finished(racing, turn)):
                break
            first = turn % len(racing)  # nobody always runs after the same other one
            for lane in racing[first:] + racing[:first]:
                if lane.samples and clock() - self.started > self.limits.longest:
                    break
                lane.sample()
            if turn + 1 >= self.limits.trial_rounds:
                self._drop_losers()
        for lane in self.racing:
            while not lane.samples and lane.racing:
                lane.sample()
        return [lane.timing() for lane in self.lanes]

    def _finished(self, racing: list[_Lane], turns: int) -> bool:
        spent = clock() - self.started
        alone = len(racing) == 1 and turns >= self.limits.trial_rounds
        sure = all(len(lane.samples) >= self.limits.sure_rounds for lane in racing)
        return alone or spent > self.limits.longest or (spent > self.limits.seconds and sure)

    def _drop_hopeless(self) -> None:
        """After calibration: what takes long and several times as long as the best is not called again."""
        once = [lane for lane in self.racing if lane.samples]
        if len(once) < len(self.racing):
            best = self.limits.burst_seconds  # at least one is shorter than a burst
        else:
            best = min((lane.samples[0] for lane in once), default=0.0)
        for lane in once:
            if self.limits.warm_seconds and lane.samples[0] > max(
                self.limits.warm_seconds, self.limits.hopeless * best
            ):
                lane.racing = False

    def _drop_losers(self) -> None:
        medians = {id(lane): low_quantile(lane.samples, 0.5) for lane in self.racing if lane.samples}
        if len(medians) < 2:
            return
        leader = min(medians.values())
        for lane in self.racing:
            enough = len(lane.samples) >= self.limits.sure_rounds
            if enough and min(lane.samples) > self.limits.clear_loser * leader:
                lane.racing = False


def _involuntary_switches() -> int:
    """How often the system took the processor from a thread of this process that had more to do."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


__all__ = [
    "GPU_LIMITS",
    "LIMITS",
    "Contender",
    "Limits",
    "Timing",
    "clock",
    "race",
    "replaced",
    "time_burst",
    "timer_for",
]
