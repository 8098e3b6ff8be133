"""Timing one candidate with bursts of back-to-back calls. In racing.py several candidates take turns.

Only `time_burst` reads a clock. If a test or a user replaces it, the selector takes the times of every candidate from the
replacement, and stores none of them.
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

    `restore`, if any, restores the arguments between bursts, for kernels that change what they read. `timer`, if any, times a
    burst on a GPU: (entry, arguments, repeats) → seconds. Contenders are compared by what `entrant` makes of their times
    (decide.py). `first` is the time of a run that has already happened, if any, in seconds.
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
    """Seconds per call of each burst, their low quantile and its relative error; or the exception. `region`: the cost of a
    parallel region during the race, if some contender has several threads. `disturbed`: during which share of the race the
    process's threads waited for a core."""

    samples: tuple[float, ...] = ()
    seconds: float = float("nan")
    noise: float = float("inf")
    error: Exception | None = None
    region: Region = UNKNOWN_REGION
    disturbed: float = 0.0


def time_burst(contender: Contender, repeats: int) -> float:
    """Seconds that `repeats` back-to-back calls take. It is replaceable: whatever stands here makes the measurements."""
    from polytile.runtime import launcher

    if contender.timer is not None:
        return contender.timer(contender.entry, contender.args, repeats)
    return launcher.time_burst(contender.entry, contender.args, repeats)


def timer_for(target: torch.device, entry: Entry) -> Timer | None:
    """A contender's own timer on the device `target`; None on a CPU, where bursts are timed by the clock. Library calls are
    timed as kernels are, without what Python takes to call them: a program of many kernels has the host ahead. In the
    background nothing is recorded: a program must not wait for its device while any thread records a graph."""
    if isinstance(entry, PythonEntry) and entry.timer is not None:
        return entry.timer
    if target.type != "cuda":
        return None
    from polytile.runtime.cuda.timing import Timer

    graphs = (entry.recordable if isinstance(entry, PythonEntry) else True) and not background.is_here()
    return Timer(target, cold=options.get("gpu_cache") == "cold", graphs=graphs)


_own_time_burst = time_burst
def replaced() -> bool:
    """Whether `time_burst` is not polytile's own."""
    return time_burst is not _own_time_burst
