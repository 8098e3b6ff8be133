"""From times to a choice, the same on every machine that measured about the same.

Two things keep a choice from following the moment: candidates within the noise band count as equal, and the best predicted of
them is chosen, as predictions are the same in every process; and kernels of several threads are judged as if a parallel region
cost the least that it was seen to cost, not what it did at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polytile import options
from polytile.problem import Config, Outcome
from polytile.store.records import Identity, Summary

if TYPE_CHECKING:
    from polytile.kernels.candidate import Candidate

WIDEST_BAND = 0.05
"""However noisy the measurement, a candidate 5 % slower than the fastest does not count as equal to it."""

REGION_TIMES = 2.0
"""How many times what an empty parallel region costs more a kernel of several threads does: 1.5-2.2 times in loops of 2-8 µs,
which also bring their data from core to core, up to 3 in products."""

MOST_CREDIT = 1e-6
"""Nobody is judged by a time that is shorter than the measured one by more than so many seconds, or than half of it."""


@dataclass(frozen=True)
class Entrant:
    """What is known of a candidate before it is timed: the seconds that its own model predicts, the threads it runs on."""

    predicted: float = math.inf
    threads: int = 1

    @classmethod
    def of(cls, candidate: Candidate, sizes: Mapping[str, int]) -> Entrant:
        return cls(candidate.cost(sizes), threads_of(candidate.config))

    def judged(self, seconds: float, excess: float) -> float:
        """The seconds to judge it by, where a parallel region cost `excess` seconds more than it has before (region.py)."""
        return seconds - min(MOST_CREDIT, REGION_TIMES * excess, seconds / 2) if self.threads > 1 else seconds


UNKNOWN = Entrant()


def threads_of(config: Config) -> int:
    """Threads of the processor that a config asks for; 1 where it does not say."""
    return int(dict(config.values).get("threads", 1))


@dataclass(frozen=True)
class Score:
    """Seconds of one candidate and their relative standard error; or how else it ended. `times`: how often it was
    measured; `excess`: what an empty parallel region cost then beyond the least seen."""

    seconds: float
    noise: float = 0.0
    outcome: Outcome = Outcome.OK
    times: int = 1
    excess: float = 0.0

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK and math.isfinite(self.seconds)


def noise_band(device: str) -> float:
    """The band of a device of that type ("cpu", "cuda"), or with a fingerprint that begins so.

    Processes that tuned 103 problems on an H100, five in one way and four in another, would have chosen alike in 97.7-98.3 % with
    bands of 1 to 1.25 %, at 0.03-0.09 % more than argmin's choice; in 96.1-97.5 % with 2 %, at 0.15-0.22 %.
    """
    return float(options.get("gpu_noise_band" if device.partition("-")[0] == "cuda" else "noise_band"))


def pick(scores: Sequence[Score | None], band: float, entrants: Sequence[Entrant] = ()) -> int | None:
    """Index of the best predicted candidate that is as fast as the fastest, the first of those predicted alike; None if none
    can run.

    "As fast": within `band` (relative), or within the two measurements' own standard error where that is larger, up to
    WIDEST_BAND. Two tunings with 2 % noise agree on a gap of up to 1 % in 35-46 % of cases by argmin, in 83-98 % with a
    2 % band, at a mean cost of 0.02 % (simulated). None stands for a candidate without a score; without `entrants` all
    are alike.
    """
    judged = _judged(scores, entrants)
    if not judged:
        return None
    best = _fastest(judged)
    return next(index for index, score in judged.items() if _as_fast(score, best, band))


def doubtful(scores: Sequence[Score | None], band: float, entrants: Sequence[Entrant] = ()) -> bool:
    """Whether another measurement may well choose differently: some candidate's distance from the fastest differs from the
    band by less than twice the two's standard error, and it or a later one in `pick`'s order is chosen by that."""
    judged = _judged(scores, entrants)
    best = _fastest(judged) if judged else None
    for score in judged.values():
        assert best is not None
        if score is not best and abs(score.seconds / best.seconds - 1 - band) < 2 * math.hypot(score.noise, best.noise):
            return True
        if _as_fast(score, best, band):
            return False
    return False


def _judged(scores: Sequence[Score | None], entrants: Sequence[Entrant]) -> dict[int, Score]:
    """The scores of those that run, by index, with the seconds that they are judged by, the best predicted first."""
    known = entrants or [UNKNOWN] * len(scores)
    able = {index: score for index, score in enumerate(scores) if score is not None and score.ok}
    return {
        index: replace(able[index], seconds=known[index].judged(able[index].seconds, able[index].excess))
        for index in sorted(able, key=lambda index: known[index].predicted)
    }


def _fastest(judged: Mapping[int, Score]) -> Score:
    return min(judged.values(), key=lambda score: score.seconds)


def _as_fast(score: Score, best: Score, band: float) -> bool:
    width = max(band, min(WIDEST_BAND, math.hypot(score.noise, best.noise)))
    return score.seconds <= best.seconds * (1 + width)


def combine(summaries: Iterable[Summary], condition: str = "back-to-back") -> dict[Identity, Score]:
    """One score for each candidate from all its measurements of one problem, oldest first.

    A wrong result, ever, is final. Otherwise the newest measurement says whether it runs, and the time is the lower
    median over all that did: one measuring process with a busy neighbour does not move it.
    """
    by_candidate: dict[Identity, list[Summary]] = {}
    for summary in summaries:
        if summary.condition == condition:
            by_candidate.setdefault(summary.who, []).append(summary)
    return {who: _score(rows) for who, rows in by_candidate.items()}


def _score(rows: Sequence[Summary]) -> Score:
    if any(row.outcome is Outcome.WRONG for row in rows):
        return Score(math.nan, math.inf, Outcome.WRONG)
    able = (row for row in rows if row.outcome is Outcome.OK and math.isfinite(row.seconds))
    timed = sorted(able, key=lambda row: (row.seconds, row.noise))
    if not timed or rows[-1].outcome is not Outcome.OK:
        return Score(math.nan, math.inf, rows[-1].outcome if rows[-1].outcome is not Outcome.OK else Outcome.RAISED)
    middle = timed[(len(timed) - 1) // 2]
    return Score(middle.seconds, middle.noise, times=len(timed), excess=middle.region_excess)


__all__ = ["UNKNOWN", "WIDEST_BAND", "Entrant", "Score", "combine", "doubtful", "pick", "threads_of"]
