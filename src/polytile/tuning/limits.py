"""How long a race between candidates may take if a call waits for it and if none does, on a CPU and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

SURE_ROUNDS, LOOK_ROUNDS = 3, 5
"""Bursts of each contender still racing that are taken though the time is up; and rounds from one look at how the contenders
stand, at which clear losers are dropped, to the next."""

FINAL_BURSTS = 3
"""Bursts of one kernel on end in each of its turns in the final."""

HOPELESS = 3.0
"""A kernel of more than `warm_seconds` that takes this many times as long as the fastest is dropped after one call."""

LONG_SECONDS = 0.1
"""If a contender took so long when it ran before, on a CPU, that run counts as the first of its bursts."""


@dataclass(frozen=True)
class Limits:
    """How long a race may take: of short kernels about `seconds` and, if the order stays open, `open_seconds` more."""

    band: float = 0.02
    """Contenders within this relative distance of the fastest count as equal: the race resolves nothing finer."""
    burst_seconds: float = 100e-6
    """A burst of a short kernel repeats it until it takes about so long; a longer kernel is called once."""
    max_repeats: int = 1000
    probe_calls: int = 1
    """A kernel's time is first estimated from a single call and from a burst of this many."""
    alike: float = 0.0
    """Contenders at most this many times as long as the shortest have bursts of as many calls: the start of a burst is part of
    its time, so other bursts would not be comparable."""
    warm_seconds: float = 1e-3
    """Kernels shorter than this get an untimed call before each burst, so that the one before leaves no trace."""
    rounds: int = 25
    """Bursts of each candidate at most, before the final."""
    clear: float = 0.0
    """A contender is dropped before the final when it is certainly slower than another by more than the band and by more than
    this."""
    seconds: float = 0.02
    """After this time, only SURE_ROUNDS more are taken."""
    final_rounds: int = 10
    """Turns of each front-runner in the final."""
    final_seconds: float = 0.01
    """After this time, the final ends if the choice is settled and the times are known well."""
    open_seconds: float = 0.02
    """After this time and `open_rounds`, the final ends in any case."""
    open_rounds: int = 5
    """Turns of each front-runner in the final while the choice is open: of kernels of some ms `open_seconds` are one turn or two,
    and beside the three bursts of the rounds before say little on a machine that others use."""
    longest: float = 3.0
    """After this time, the race ends with the results so far; each candidate has at least one burst."""
    gated: bool = True
    """Whether a burst in which the scheduler took the processor away is discarded: it says nothing about a GPU."""
    calibrations: int = 2
    """How often a contender's first calls are made, at most, while other programs have the cores: a kernel of two threads waits
    some 7 ms for a core that is taken, and would look hopeless."""
    races: int = 1
    """How often the whole race is run, at most, while other programs have the cores; the least disturbed one counts."""
    pause_seconds: float = 0.2
    """Between one such race and the next: what disturbs a machine lasts 0.1-5 s."""
    calm: float = 0.05
    """A race is disturbed if the process's threads waited for a core for this share of its time."""
    patience: float = 0.0
    """For this many seconds after a race that was still disturbed when repeated, no race is repeated: the machine is busy."""


LIMITS = Limits(races=2, pause_seconds=0.1, calm=0.5, patience=5.0)
"""Where a call waits. A race beside a program that has a core for half of it says nothing: kernels of two threads, of 55-200 µs,
all took 7.9 ms, a time slice, so all counted as equal and the best predicted was chosen, at 0.70 of the library's speed."""

THOROUGH = Limits(
    rounds=40, seconds=0.1, final_rounds=20, final_seconds=0.1, open_seconds=0.5, longest=10.0, calibrations=10, races=3
)
"""Where nobody waits for a call, and the same choice is wanted next time."""

GPU_LIMITS = Limits(
    burst_seconds=200e-6,
    max_repeats=50,
    probe_calls=4,
    alike=4.0,
    warm_seconds=0.0,
    seconds=0.08,
    final_seconds=0.02,
    open_seconds=0.04,
    open_rounds=1,
    gated=False,
)
"""A burst is one replay of a graph of up to 50 calls: more would take longer to record than to run. A single call is no measure
of a short kernel: on a busy host launching it takes longer than it does, and a library's kernel of 8 µs, timed one call at a
time since the first had taken 200, came out five times as long or more in up to nine of twenty processes.
Nothing is dropped after one call: the first may carry the driver's own work."""

GPU_THOROUGH = replace(
    GPU_LIMITS, rounds=50, clear=0.12, seconds=0.2, final_rounds=40, final_seconds=0.2, open_seconds=0.5, longest=10.0
)
"""While the order is open nothing is dropped that a recording of its own may explain, which is up to 10 % slower than another of
the same calls (runtime/cuda/timing.py) in every replay: six times one of seven processes found a candidate near the front 4-15 %
slower than the other six did."""


def within(limits: Limits, seconds: float) -> Limits:
    """The limits of a race that may take this many seconds. It takes at least one burst of each contender."""
    most = max(0.0, seconds)
    return replace(
        limits,
        seconds=min(limits.seconds, most / 2),
        final_seconds=min(limits.final_seconds, most / 2),
        open_seconds=min(limits.open_seconds, most / 2),
        longest=min(limits.longest, most),
    )
