"""Timing one candidate: bursts of back-to-back calls. racing.py has several of them take turns.

`time_burst` is the one place where a clock is read. A test or a user may replace it; the selector then asks
for the times of every candidate, believes them, and stores none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from polytile import options
from polytile.candidates.entries import Entry, PythonEntry
from polytile.runtime import background
from polytile.tuning.decide import UNKNOWN, Entrant
from polytile.tuning.region import UNKNOWN as UNKNOWN_REGION
from polytile.tuning.region import Region

if TYPE_CHECKING:
    from polytile.runtime.cuda.timing import Timer


@dataclass(frozen=True)
class Contender:
    """A candidate ready to be timed: its entry and the flat arguments to call it with.

    `restore`, if any, puts the arguments back between bursts, for kernels that change what they read. `timer`, if any,
    takes the time of a burst on a GPU: (entry, arguments, repeats) → seconds. How contenders stand to each other is judged
    by what `entrant` makes of their times (decide.py). `first`: the seconds of a run that there has been already, if any.
    """

    name: str
    entry: Entry
    args: tuple[Any, ...]
    restore: Callable[[], None] | None = None
    timer: Timer | None = None
    entrant: Entrant = UNKNOWN
    first: float | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds per call of each burst, their low quantile and its relative error; or what was raised. `region`: what a
    parallel region cost meanwhile, where some contender has several threads. `disturbed`: for which part of the race the
    process's threads had to wait for a core."""

    samples: tuple[float, ...] = ()
    seconds: float = float("nan")
    noise: float = float("inf")
    error: Exception | None = None
    region: Region = UNKNOWN_REGION
    disturbed: float = 0.0


def time_burst(contender: Contender, repeats: int) -> float:
    """Seconds that `repeats` back-to-back calls take. Replaceable: measurements are made by whatever stands here."""
    from polytile.runtime import launcher

    if contender.timer is not None:
        return contender.timer(contender.entry, contender.args, repeats)
    return launcher.time_burst(contender.entry, contender.args, repeats)


def timer_for(target: torch.device, entry: Entry) -> Timer | None:
    """A contender's own timer on the device `target`; None on a CPU, where bursts are timed by the clock. Library calls are
    timed as kernels are, without what Python takes to call them: a program of many kernels has the host ahead. In the background
    nothing is recorded: a program may not wait for its device while any thread records a graph."""
    if isinstance(entry, PythonEntry) and entry.timer is not None:
        return entry.timer
    if target.type != "cuda":
        return None
    from polytile.runtime.cuda.timing import Timer

    by_library = isinstance(entry, PythonEntry) or entry.otherwise is not None
    graphs = (entry.recordable if isinstance(entry, PythonEntry) else True) and not background.is_here()
    return Timer(target, cold=options.get("gpu_cache") == "cold", graphs=graphs, slow_start=by_library)


_own_time_burst = time_burst
def replaced() -> bool:
    """Whether `time_burst` is not polytile's own."""
    return time_burst is not _own_time_burst
