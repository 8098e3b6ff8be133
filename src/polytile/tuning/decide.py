"""Chooses by times, so that machines with about the same measurements make the same choice.

Two rules keep a choice independent of the moment. Candidates within the noise band count as equal, and the best predicted of
them is chosen, since predictions are the same in every process, but ATen's own call only if there is no other; if the option
`sources` names sources, the first source wins. And kernels with several threads are judged as if starting a parallel region
took the least time ever measured, not its time at that moment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polytile import options
from polytile.candidates.sources import source_of
from polytile.host_time import host_seconds, weighed
from polytile.problem import Config, Outcome
from polytile.store.records import Identity, Reading

if TYPE_CHECKING:
    from polytile.candidates.candidate import Candidate

WIDEST_BAND = 0.05
"""However noisy the measurement, a candidate 5 % slower than the fastest does not count as equal to it."""

BUSY = 0.1
"""A reading counts as taken under load if the process's threads waited for a core during a larger share of the race."""

MOST_ERROR = 1.0
"""The largest relative error assumed of a reading under load: a single sample has no error of its own, but a candidate that
takes half the time is faster."""

MOST_TIMES = 3
"""How often the candidates of one problem are measured at most, while the choice is in doubt or rests on readings taken under
load."""

FEW = 5
"""From so many measurements of a candidate on, the mean of the middle half is its time, instead of the lower median."""

BANDS = {"cpu": 0.02, "cuda": 0.01}
"""The relative difference in time within which candidates count as equal, by type of device: a GPU's times vary by a quarter
as much. Processes that tuned 103 problems on an H100, five in one way and four in another, would have chosen alike in 97.7-98.3 %
with bands of 1 to 1.25 %, at 0.03-0.09 % more than argmin's choice; in 96.1-97.5 % with 2 %, at 0.15-0.22 %."""

REGION_TIMES = 2.0
"""Extra time of a kernel with several threads, as a multiple of the extra time of an empty parallel region: 1.5-2.2 in loops of
2-8 µs, which also bring their data from core to core, up to 3 in products."""

MOST_CREDIT = 1e-6
"""A candidate's time is corrected by at most this many seconds, and by at most half."""


@dataclass(frozen=True)
class Entrant:
    """What is known of a candidate before it is timed: the seconds that its model predicts, its threads, the rank of its source
    among the competing ones, whether it is the library's, and the seconds that a call keeps the host busy (host_time.py)."""

    predicted: float = math.inf
    threads: int = 1
    place: int = 0
    library: bool = False
    host: float = 0.0

    @classmethod
    def from_candidate(cls, candidate: Candidate, family: str, device: str, sizes: Mapping[str, int]) -> Entrant:
        return cls.known(candidate.cost(sizes), candidate.config, candidate.origin, family, device)

    @classmethod
    def known(cls, predicted: float, config: Config, origin: str, family: str, device: str) -> Entrant:
        """The Entrant of a candidate of this config and origin, for a problem of this family on this type of device."""
        host = host_seconds(family, origin, device)
        return cls(predicted, threads_of(config), place_of(origin, family), origin == "library", host)

    @property
    def order(self) -> tuple[int, bool, float]:
        """Of two equally fast candidates, the one with the smaller order is chosen. The library's comes last: its call takes the
        host longer, and cannot be part of a CUDA graph."""
        return self.place, self.library, self.predicted

    def judged(self, seconds: float, excess: float) -> float:
        """The seconds to judge it by, where a parallel region cost `excess` seconds more than it has before (region.py)."""
        credit = min(MOST_CREDIT, REGION_TIMES * excess, seconds / 2) if self.threads > 1 else 0.0
        return weighed(seconds - credit, self.host)


UNKNOWN = Entrant()

def place_of(origin: str, family: str) -> int:
    """The rank of a product's candidate of this origin by the option `sources`; 0 if the option is empty, and in other
    families, which have no sources."""
    sources = options.parts(options.get("sources"))
    if not sources or family in ("loop", "user"):
        return 0
    source = source_of(origin)
    return sources.index(source) if source in sources else len(sources)


def threads_of(config: Config) -> int:
    """The processor threads that a config asks for; 1 if it does not say."""
    return int(dict(config.values).get("threads", 1))


@dataclass(frozen=True)
class Score:
    """Seconds of one candidate with their relative standard error, or how else it ended. `times`: how often it was measured;
    `excess`: what an empty parallel region then cost beyond the least seen; `disturbed`: during which share of the race the
    process's threads waited for a core."""

    seconds: float
    noise: float = 0.0
    outcome: Outcome = Outcome.OK
    times: int = 1
    excess: float = 0.0
    disturbed: float = 0.0

    @property
    def provisional(self) -> bool:
        """Whether it was taken under load, and is to be taken again."""
        return self.ok and self.disturbed > BUSY and self.times < MOST_TIMES

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK and math.isfinite(self.seconds)


def noise_band(kind: str) -> float:
    """The relative band of devices of that type ("cpu", "cuda")."""
    return BANDS.get(kind, BANDS["cpu"])


def pick(scores: Sequence[Score | None], band: float, entrants: Sequence[Entrant] = ()) -> int | None:
    """Index of the first candidate, in the order of `entrants` (Entrant.order), that is as fast as the fastest; None if none
    can run.

    "As fast" means within `band` (relative), or within the standard error of the two measurements if that is larger, up to
    WIDEST_BAND. A candidate must be within `band` of the library's in any case, since a tuned program must not be slower than
    eager; under load, it must be faster than the library's by more than the error. Two tunings with 2 % noise agree on a gap of
    up to 1 % in 35-46 % of cases by argmin and in 83-98 % with a 2 % band, at a mean cost of 0.02 % (simulated). None stands
    for a candidate without a score; without `entrants` all are alike.
    """
    judged = _judged(scores, entrants)
    if not judged:
        return None
    best, known = _fastest(judged), entrants or [UNKNOWN] * len(scores)
    library = min((i for i in judged if known[i].library), key=lambda index: judged[index].seconds, default=None)
    fast = (index for index, score in judged.items() if _as_fast(score, best, band))
    return next((i for i in fast if library is None or known[i].library or _beats(judged[i], judged[library], band)), library)


def equals(scores: Sequence[Score | None], band: float, entrants: Sequence[Entrant] = ()) -> tuple[int, ...]:
    """Indexes of the candidates that count as equal to the fastest, which is one of them, in the order in which `pick` prefers
    them."""
    judged = _judged(scores, entrants)
    best = _fastest(judged) if judged else None
    return tuple(index for index, score in judged.items() if best is not None and _as_fast(score, best, band))


def doubtful(scores: Sequence[Score | None], band: float, entrants: Sequence[Entrant] = ()) -> bool:
    """Whether another measurement could well change the choice: a candidate's distance from the fastest differs from the band
    by less than twice their standard error, and on that depends whether it or a later candidate in `pick`'s order is chosen."""
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
    """The scores of the candidates that run, by index, with the seconds that they are judged by, in the order in which they are
    chosen."""
    known = entrants or [UNKNOWN] * len(scores)
    able = {index: score for index, score in enumerate(scores) if score is not None and score.ok}
    return {
        index: _with_seconds(able[index], known[index].judged(able[index].seconds, able[index].excess))
        for index in sorted(able, key=lambda index: known[index].order)
    }


def _with_seconds(score: Score, seconds: float) -> Score:
    return score if seconds == score.seconds else replace(score, seconds=seconds)


def _beats(score: Score, library: Score, band: float) -> bool:
    """Whether a candidate may run in place of the library's: it is no slower, or, if readings were taken under load, it is
    surely faster."""
    if max(score.disturbed, library.disturbed) > BUSY:
        return score.seconds * (1 + min(MOST_ERROR, math.hypot(score.noise, library.noise))) < library.seconds
    return score.seconds <= library.seconds * (1 + band)


def _fastest(judged: Mapping[int, Score]) -> Score:
    return min(judged.values(), key=lambda score: score.seconds)


def _as_fast(score: Score, best: Score, band: float) -> bool:
    width = max(band, min(WIDEST_BAND, math.hypot(score.noise, best.noise)))
    return score.seconds <= best.seconds * (1 + width)


def combine(readings: Iterable[Reading], condition: str = "back-to-back") -> dict[Identity, Score]:
    """One score for each candidate from all its measurements of one problem, oldest first.

    One wrong result is final. Otherwise the newest measurement says whether the candidate runs, and its time is the lower
    median of all that did, except those taken under load if others were not. Of FEW or more it is the mean of the middle half,
    which is as safe from processes that are far off and varies less: of many normal values by 9 % more than their mean, where a
    median varies by 25 % more.
    """
    by_candidate: dict[Identity, list[Reading]] = {}
    for reading in readings:
        if reading.condition == condition:
            by_candidate.setdefault(reading.who, []).append(reading)
    return {who: _score(rows) for who, rows in by_candidate.items()}


def _score(rows: Sequence[Reading]) -> Score:
    if any(row.outcome is Outcome.WRONG for row in rows):
        return Score(math.nan, math.inf, Outcome.WRONG)
    able = (row for row in rows if row.outcome is Outcome.OK and math.isfinite(row.seconds))
    timed = sorted(able, key=lambda row: (row.seconds, row.noise))
    if not timed or rows[-1].outcome is not Outcome.OK:
        return Score(math.nan, math.inf, rows[-1].outcome if rows[-1].outcome is not Outcome.OK else Outcome.RAISED)
    calm = [row for row in timed if row.disturbed <= BUSY] or timed
    middle = calm[(len(calm) - 1) // 2]
    half = calm[len(calm) // 4 : len(calm) - len(calm) // 4] if len(calm) >= FEW else [middle]
    seconds = statistics.fmean(row.seconds for row in half)
    excess = statistics.fmean(row.region_excess for row in half)
    return Score(seconds, middle.noise, times=len(timed), excess=excess, disturbed=middle.disturbed)
