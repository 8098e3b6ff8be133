"""Times candidates against each other. They take turns, one burst each, so that noise affects all alike, until the order is
clear.

First come rounds in which clear losers drop out (pairwise.py compares the times within a round). In the final, each remaining
candidate runs several bursts on end, as it will in a program. docs/tuning.md says why.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import resource
import time
from collections.abc import Sequence

from polytile import locks
from polytile.errors import DeviceLost
from polytile.runtime import cpu
from polytile.store.summary import summarise
from polytile.tuning import measure, pairwise
from polytile.tuning.limits import FINAL_BURSTS, HOPELESS, LIMITS, LONG_SECONDS, LOOK_ROUNDS, SURE_ROUNDS, Limits
from polytile.tuning.measure import Contender, Timing
from polytile.tuning.region import UNKNOWN as UNKNOWN_REGION
from polytile.tuning.region import Region, time_region

clock, pause = time.perf_counter, time.sleep
"""The clock for the length of the race itself, and the sleep while waiting for calmer times."""

MOVED = 1.3
"""If a parallel region's cost changes by this factor, the threads have moved to other cores."""

_one_race_at_a_time = locks.rlock()


class _Crowded:
    """When a race was last disturbed in every run."""

    last = -math.inf


_crowded = _Crowded()


class Stopped(KeyboardInterrupt):
    """Ctrl-C stopped a race; `timings` has the results so far, one for each contender."""

    def __init__(self, timings: list[Timing]) -> None:
        super().__init__()
        self.timings = timings


def race(contenders: Sequence[Contender], limits: Limits = LIMITS) -> list[Timing]:
    """Times the contenders, given in the order in which ties are broken. Each must have run before: nothing is warmed up for
    the first time here.

    A contender that raises an exception leaves the race, and its exception is returned. Raises Stopped for Ctrl-C.
    """
    # A candidate may call another MultiKernel, which then races within this race: the lock must be reentrant. Nor may
    # it be waited for without end: whoever holds it may be waiting for a MultiKernel that this thread is choosing for.
    alone = _one_race_at_a_time.acquire(timeout=limits.longest)
    try:
        return _calmest(contenders, limits)
    finally:
        _tidy(contenders)
        if alone:
            _one_race_at_a_time.release()


def _tidy(contenders: Sequence[Contender]) -> None:
    """After a race on a GPU, gives back the memory of its recordings."""
    for contender in contenders:
        if contender.timer is not None:
            contender.timer.release()


def _calmest(contenders: Sequence[Contender], limits: Limits) -> list[Timing]:
    """The timings of the race that other programs disturbed least, of at most `limits.races`."""
    started, least, kept = clock(), math.inf, None
    races = 1 if 0 <= started - _crowded.last < limits.patience else limits.races
    for number in range(1, races + 1):
        try:
            race = _Race(contenders, limits)
            timings = race.run()
            disturbed = race.disturbed()
            if kept is None or disturbed < least:
                least, kept = disturbed, timings
            if least <= limits.calm or races == 1:
                break
            if number == races or clock() - started > limits.longest:
                _crowded.last = clock()
                break
            pause(limits.pause_seconds)
        except KeyboardInterrupt as interrupt:
            so_far = kept or (interrupt.timings if isinstance(interrupt, Stopped) else None)
            raise interrupt if so_far is None else Stopped(so_far) from None
    assert kept is not None, "a race is run at least once"
    return [dataclasses.replace(timing, disturbed=least) for timing in kept]


class _Lane:
    """One contender's bursts so far."""

    def __init__(self, contender: Contender, region: Region) -> None:
        self.contender = contender
        self.region = region
        self.samples: list[float] = []
        self.rounds: dict[int, float] = {}
        """The best sample of each round taken part in, as it is judged."""
        self.discarded = 0
        self.call = math.inf
        """Seconds of a call, about."""
        self.repeats = 1
        self.warm = False
        self.racing = True
        self.gated = True
        self.one_by_one = False
        self.error: Exception | None = None

    def calibrate(self, limits: Limits, waited: float) -> None:
        """Says about how long a call takes, from a single one and, unless that is long, `probe_calls` more. Made again if
        other programs had a core for half of that time; `waited` is an earlier reading."""
        self.gated = limits.gated
        known = self.contender.first
        if limits.gated and not measure.replaced() and known is not None and known >= LONG_SECONDS:
            self.call = known
            return
        for _ in range(limits.calibrations):
            call = self.burst(1)
            if call < limits.seconds:
                call = min(call, self.burst(limits.probe_calls) / limits.probe_calls)
            if not self.racing:
                return
            if call < limits.warm_seconds or not limits.gated:
                break
            before, waited = waited, cpu.waited()
            if waited - before < call / 2:
                break
        self.call = max(call, 1e-9)

    def settle_bursts(self, limits: Limits, shortest: float) -> None:
        """Decides how many calls make a burst, where the shortest contender's takes `shortest` seconds. Calls so far are no
        samples, except where a burst is one call."""
        call = shortest if self.call <= limits.alike * shortest else self.call
        self.repeats = max(1, min(limits.max_repeats, round(limits.burst_seconds / call)))
        self.warm = self.call < limits.warm_seconds
        if self.repeats == 1:
            self.samples.append(self.call)

    def burst(self, repeats: int) -> float:
        """Seconds for `repeats` calls; on an exception the lane leaves the race, unless the device is lost to all."""
        try:
            return self._burst(repeats)
        except DeviceLost:
            raise
        except Exception as error:
            self.racing, self.error = False, error
            return float("inf")

    def _burst(self, repeats: int) -> float:
        """Back to back, unless an index that one call writes is out of range for the next, or a divisor is 0: then one by one."""
        restore = self.contender.restore
        if restore is not None:
            restore()
        if not self.one_by_one:
            try:
                if self.warm:
                    measure.time_burst(self.contender, 1)
                return measure.time_burst(self.contender, repeats)
            except IndexError:
                if restore is None:
                    raise
                self.one_by_one = True
        assert restore is not None
        seconds = 0.0
        for _ in range(repeats):
            restore()
            seconds += measure.time_burst(self.contender, 1)
        return seconds

    def sample(self, turn: int) -> None:
        """Takes a burst. One in which the scheduler took the processor away is discarded, if not more than half are."""
        before = _involuntary_switches()
        seconds = self.burst(self.repeats)
        if not self.racing:
            return
        if self.gated and _involuntary_switches() != before and self.discarded <= len(self.samples):
            self.discarded += 1
            return
        self.samples.append(seconds / self.repeats)
        judged = self.contender.entrant.judged(self.samples[-1], self.region.excess)
        self.rounds[turn] = min(judged, self.rounds.get(turn, math.inf))

    def begin_final(self) -> None:
        """What was sampled among other kernels' bursts is not mixed with what is sampled in steady state."""
        self.samples, self.rounds, self.discarded = [], {}, 0

    def timing(self) -> Timing:
        seconds, noise = summarise(self.samples)
        return Timing(tuple(self.samples), seconds, noise, self.error, self.region)


class _Race:
    """Rounds in which each contender takes a burst, until the losers are out; then the final of the others."""

    def __init__(self, contenders: Sequence[Contender], limits: Limits) -> None:
        self.limits = limits
        self.threads = max((contender.entrant.threads for contender in contenders), default=1)
        self.region = self._region()
        self.lanes = [_Lane(contender, self.region) for contender in contenders]
        self.started = clock()
        self.waited = cpu.waited() if limits.gated else 0.0

    def disturbed(self) -> float:
        """For how much of the time since the start the process's threads, together, have waited for a core; all of it if the
        cores have moved meanwhile, by what a parallel region costs. 0 where no clock is read, and on a GPU."""
        if measure.replaced() or not self.limits.gated:
            return 0.0
        ratio = self._region().seconds / self.region.seconds
        if ratio > MOVED or ratio < 1 / MOVED:
            return 1.0
        return (cpu.waited() - self.waited) / max(1e-9, clock() - self.started)

    def _region(self) -> Region:
        """What a parallel region costs now; unknown where no contender has several threads, or no clock is read."""
        return UNKNOWN_REGION if measure.replaced() else time_region(self.threads)

    @property
    def racing(self) -> list[_Lane]:
        return [lane for lane in self.lanes if lane.racing]

    def run(self) -> list[Timing]:
        try:
            for lane in self.lanes:
                lane.calibrate(self.limits, self.waited)
            shortest = min((lane.call for lane in self.racing), default=math.inf)
            for lane in self.racing:
                lane.settle_bursts(self.limits, shortest)
            self._drop_hopeless()
            self._heats()
            if len(self.racing) > 1 and clock() - self.started < self.limits.longest:
                self._final()
            for lane in self.racing:
                while not lane.samples and lane.racing:
                    lane.sample(0)
        except KeyboardInterrupt:
            raise Stopped([lane.timing() for lane in self.lanes]) from None
        return [lane.timing() for lane in self.lanes]

    def _heats(self) -> None:
        """Rounds of one burst each until one contender is left, or the time is up and each has enough."""
        limits = self.limits
        for turn in range(limits.rounds):
            self._round(turn, 1)
            looked = (turn + 1) % LOOK_ROUNDS == 0
            if looked:
                self._drop_losers()
            racing = self.racing
            if not racing or (len(racing) == 1 and turn + 1 >= LOOK_ROUNDS):
                return
            spent = clock() - self.started
            sure = all(len(lane.samples) >= SURE_ROUNDS for lane in racing)
            if spent > limits.longest or (spent > limits.seconds and sure) or (looked and self._choice_is_certain()):
                return

    def _final(self) -> None:
        """The front-runners in steady state: each runs on end, a few bursts at a time, as it will in a program that calls it
        often; longer, up to a limit, while the choice is open. Long kernels leave nothing behind in a cache that the next
        could find, so theirs is needed only for that."""
        limits, begun = self.limits, clock()
        if not any(lane.warm for lane in self.racing) and self._choice_is_certain():
            return
        short = all(lane.warm for lane in self.racing)
        if short:
            for lane in self.racing:
                lane.begin_final()
        for turn in itertools.count(limits.rounds):
            self._round(turn, FINAL_BURSTS if short else 1)
            spent, racing = clock() - begun, self.racing
            turns = turn + 1 - limits.rounds
            late = spent > limits.open_seconds and (turns >= limits.open_rounds or (not short and self._choice_is_certain()))
            late = late or clock() - self.started > limits.longest
            if len(racing) < 2 or (late and all(lane.samples for lane in racing)):
                return
            enough = turns >= limits.final_rounds or spent > limits.final_seconds
            if enough and turn % LOOK_ROUNDS == 0 and self._choice_is_certain() and not self._noisy():
                return

    def _round(self, turn: int, bursts: int) -> None:
        """A turn of each contender, beginning with another one each time: nobody always runs after the same other one."""
        racing = self.racing
        first = turn % len(racing) if racing else 0
        for lane in racing[first:] + racing[:first]:
            for _ in range(bursts):
                if lane.racing and not (lane.samples and clock() - self.started > self.limits.longest):
                    lane.sample(turn)

    def _choice_is_certain(self) -> bool:
        return pairwise.choice_is_certain([lane.rounds for lane in self.racing], self.limits.band)

    def _noisy(self) -> bool:
        """Whether the time of a front-runner is not known to half the band, so that other processes might see it beyond."""
        return any(summarise(lane.samples)[1] > self.limits.band / 2 for lane in self.racing)

    def _drop_hopeless(self) -> None:
        """After calibration: what takes long and several times as long as the best is not called again."""
        once = [lane for lane in self.racing if lane.samples]
        if len(once) < len(self.racing):
            best = self.limits.burst_seconds  # at least one is shorter than a burst
        else:
            best = min((lane.samples[0] for lane in once), default=0.0)
        for lane in once:
            if self.limits.warm_seconds and lane.samples[0] > max(self.limits.warm_seconds, HOPELESS * best):
                lane.racing = False

    def _drop_losers(self) -> None:
        """Contenders that are clearly slower than another."""
        racing, margin = self.racing, max(self.limits.band, self.limits.clear)
        rounds = [lane.rounds for lane in racing]
        for place, lane in enumerate(racing):
            lane.racing = not pairwise.behind(lane.rounds, [*rounds[:place], *rounds[place + 1 :]], margin)


def _involuntary_switches() -> int:
    """How often the system took the processor from a thread of this process that had more to do."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
