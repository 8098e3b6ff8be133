"""Trying a regime's candidates on the program's own calls (runtime/trial.c), and deciding by the result.

    check      candidates are compiled and compared with the reference, on made-up arguments; in the background
    try        now and then a call runs one of them in place of what serves, and the next call is timed as usual
    judge      candidates far off are given up; the others go on until the noise allows to say who is fastest; in the background
    decide     the tuner's rule for ties chooses, and the times go to the store, marked `live`

Calls of one regime have different sizes. So a time counts relative to the time predicted for the serving candidate at the same
sizes. Trials are spaced such that they cost no more than the option `explore` allows: a contender that takes 1.3 times as long,
in one call of ten, costs 3 %.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.dispatch import trace
from polytile.dispatch.leases import Lease
from polytile.dispatch.links import measured, prior
from polytile.dispatch.links.nearby import champions
from polytile.dispatch.request import Answer, Request
from polytile.problem import Outcome
from polytile.tuning.decide import Score

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

WARM, ENOUGH, MOST = 1, 7, 21
"""Samples of each contender: how many do not count, because code and data are new to the caches; after how many the trial may
end, if the noise allows; and after how many it ends in any case."""

FAR_OFF, CLEARLY_SLOWER, SEEN = 2.0, 1.2, 3
"""A contender is given up if its first sample, or the median of `SEEN` samples, took this many times as long."""

ASSUMED = 0.5
"""The relative extra cost assumed of a contender before it was tried."""

LEAST_PERIOD, MOST_PERIOD = 3, 200

MOST_CONTENDERS = 7
"""The limit of trial.c."""

IDLE_SECONDS = 2.0
"""A trial that no call has brought on for so long is not under way."""


@dataclass
class Contender:
    """A candidate, its error as the gate measured it, and the logarithms of its times relative to the prediction."""

    candidate: Candidate
    entry: NativeEntry | PythonEntry
    max_error: float | None
    logs: list[float] = field(default_factory=list)
    given_up: bool = False

    @property
    def counted(self) -> list[float]:
        return self.logs[WARM:]

    @property
    def middle(self) -> float:
        """The median of what counts; of the first samples where there is nothing else."""
        return statistics.median(self.counted or self.logs)


class LiveTrial:
    """One regime's trial. Only the background's thread uses it."""

    def __init__(self, owner: MultiKernel, key: int, request: Request, contenders: Sequence[Contender]) -> None:
        self.owner, self.key, self.request, self.contenders = owner, key, request, list(contenders)
        self._predicted: dict[tuple[int, ...], float] = {}
        self.lease = Lease(None, "")
        """Held until the trial has ended."""
        self._looked_at = time.monotonic()

    @property
    def is_under_way(self) -> bool:
        """Whether calls have brought it on lately: sizes that come once leave a trial open until somebody waits."""
        return time.monotonic() - self._looked_at < IDLE_SECONDS

    @classmethod
    def begin(cls, owner: MultiKernel, key: int, request: Request, serving: str) -> LiveTrial | None:
        """Checks the candidates worth trying beside the candidate `serving`, and begins. None if there is nothing to try, or
        the program's calls cannot be used for it."""
        wanted = {c.name for c in prior.shortlist(request)} | champions(request)
        predicted = {c.name: c.cost(request.sizes) for c in request.alive}
        worth_it = [c for c in request.alive if c.name in wanted or c.name == serving]
        quick = [c for c in worth_it if c.name != serving and not c.per_size]  # no call of the program's waits for what is built
        rivals = sorted(quick, key=lambda c: predicted[c.name])[:MOST_CONTENDERS]
        tried = [c for c in worth_it if c.name == serving or c in rivals]
        if not rivals or "inout" in request.spec.roles or not options.get("explore") or not _can_be_timed(request):
            return None
        passed = measured.check(request, tried)
        contenders = [Contender(candidate, entry, error) for candidate, entry, error in passed]
        first = [c for c in contenders if c.candidate.name == serving]
        if not first or len(contenders) < 2:
            return None
        trial = cls(owner, key, request, [*first, *(c for c in contenders if c.candidate.name != serving)])
        owner.dispatcher.insert(key, first[0].entry)
        device = request.spec.target.index or 0
        began = owner.dispatcher.begin_trial(
            key, tuple(c.entry for c in trial.contenders[1:]), WARM, trial._period(), device
        )
        return trial if began else None

    def judge(self) -> Answer | None:
        """Reads the samples taken so far; returns the answer once it is clear."""
        self._looked_at = time.monotonic()
        for index, seconds, ints in self.owner.dispatcher.samples(self.key):
            if math.isnan(seconds):
                self._reject(self.contenders[index])
            else:
                self.contenders[index].logs.append(math.log(max(seconds, 1e-9) / self._scale(ints)))
        serving, *rivals = self.contenders
        for rival in rivals:
            excess = rival.middle - serving.middle if rival.logs and serving.logs else 0.0
            limit = CLEARLY_SLOWER if len(rival.counted) >= SEEN else FAR_OFF
            rival.given_up = rival.given_up or excess > math.log(limit)
        open_ones = [c for c in self.contenders if not c.given_up]
        fewest = min(len(c.counted) for c in open_ones)
        if len(open_ones) > 1 and (fewest < ENOUGH or (fewest < MOST and self.request.doubtful(self._scores()))):
            wanted = WARM + (ENOUGH if fewest < ENOUGH else MOST)
            still = tuple(0 if c.given_up else max(0, wanted - len(c.logs)) for c in self.contenders)
            self.owner.dispatcher.go_on(self.key, still, self._period())
            return None
        return self._answer()

    def _reject(self, contender: Contender) -> None:
        contender.given_up = True
        why = "failed in a call of the program that another candidate ran"
        self.request.reject(contender.candidate.name, Outcome.RAISED, why)
        trace.rejected(self.request.spec, contender.candidate.name, why, Outcome.RAISED)

    def end(self) -> None:
        """Stops trying."""
        self.owner.dispatcher.end_trial(self.key)

    def _answer(self) -> Answer:
        scores = self._scores()
        best = self.request.pick(scores, preferred=self.contenders[0].candidate.name) or self.contenders[0].candidate
        measured.keep_live(self.request, [(c.candidate, self._seconds(c), c.max_error) for c in self.contenders if c.logs])
        return Answer(best, "measured on the program's own calls", tuple(scores), tried=True)

    def _scores(self) -> list[Score | None]:
        by_name = {c.candidate.name: c for c in self.contenders if c.logs and c.candidate.name not in self.request.rejected}
        return [self._score(by_name[c.name]) if c.name in by_name else None for c in self.request.candidates]

    def _score(self, contender: Contender) -> Score:
        counted = contender.counted or contender.logs
        spread = statistics.stdev(counted) / math.sqrt(len(counted)) if len(counted) > 1 else math.inf
        return Score(math.exp(contender.middle) * self._scale(self.request.ints), spread)

    def _seconds(self, contender: Contender) -> tuple[float, ...]:
        """Its times as if all had been taken at the request's sizes."""
        scale = self._scale(self.request.ints)
        return tuple(math.exp(log) * scale for log in contender.counted or contender.logs)

    def _scale(self, ints: Sequence[int]) -> float:
        known = self._predicted.get(tuple(ints))
        if known is None:
            serving = self.contenders[0].candidate
            known = self._predicted[tuple(ints)] = max(1e-9, serving.cost(self.owner.spec.sizes(ints)))
        return known

    def _period(self) -> int:
        """Calls for each of which one tries a contender."""
        serving, *rivals = self.contenders
        costs = [
            max(0.0, math.expm1(rival.middle - serving.middle)) if rival.logs and serving.logs else ASSUMED
            for rival in rivals
            if not rival.given_up
        ]
        share = options.get("explore")
        excess = statistics.fmean(costs) if costs else 0.0
        return min(MOST_PERIOD, max(LEAST_PERIOD, math.ceil(excess / share))) if share else MOST_PERIOD


def _can_be_timed(request: Request) -> bool:
    """Whether single calls can be, on the request's device."""
    if request.spec.target.type != "cuda":
        return True
    from polytile.runtime.cuda.beside import can_time_calls  # what a GPU needs is imported where there is one

    return can_time_calls()
