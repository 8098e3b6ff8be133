"""Replays a matrix of measurements in place of a device: for choosing, searching and learning without a GPU and without a
clock.

A Matrix holds every candidate on every problem of one kernel. Its Device answers as if each of them could be tried on it: it is
a Tuner for whole trials and a clock for races, and counts what it was asked. `evaluate` says what any way of choosing would
have cost, compared with the fastest candidates.

An unmeasured candidate counts as unable to run. A matrix is complete if every candidate that can run was measured; a run at
each size with the option `tune="all"` makes one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.errors import CandidateRejected
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store.reading import Record, grouped
from polytile.store.records import TERM, Environment
from polytile.store.summary import reached, summarise
from polytile.tuning.decide import Score
from polytile.tuning.measure import Contender
from polytile.tuning.standings import Standing, standings
from polytile.tuning.task import Attempt, Task


@dataclass(frozen=True)
class Recorded(Candidate):
    """A candidate known by its measurement on one problem. `predicted` is the time that it predicted there, in seconds
    (infinite if it predicted none, so that the canonical order decides)."""

    name: str
    config: Config
    origin: str
    predicted: float
    measurement: Measurement
    score: Score

    @property
    def source_hash(self) -> str:
        return self.measurement.source_hash

    def cost(self, sizes: Mapping[str, int]) -> float:
        """What its own model predicted for its problem, in seconds."""
        return self.predicted

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """What that prediction was made of; empty where the measurement does not say."""
        state = self.measurement.state
        return {name.removeprefix(TERM): float(value) for name, value in state if name.startswith(TERM)}

    def entry(self) -> Entry:
        raise CandidateRejected(f"{self.name!r} is known by its measurements alone and cannot run; ask its Device.")


@dataclass(frozen=True)
class Matrix:
    """All measurements of one kernel on one device in one environment: for each problem, in the order in which they were
    first measured, its candidates in canonical order (that of their first measurement)."""

    candidates: Mapping[Problem, tuple[Recorded, ...]]
    environment: Environment

    @property
    def problems(self) -> tuple[Problem, ...]:
        """In the order in which they were first measured."""
        return tuple(self.candidates)

    @property
    def names(self) -> tuple[str, ...]:
        """Every candidate, in canonical order."""
        return tuple(dict.fromkeys(c.name for measured in self.candidates.values() for c in measured))

    @property
    def size(self) -> int:
        """Pairs of problem and candidate that were measured."""
        return sum(map(len, self.candidates.values()))

    def missing(self) -> int:
        """Pairs that were not, and count as unable to run."""
        return len(self.names) * len(self.problems) - self.size

    def seconds(self, problem: Problem, candidate: str) -> float:
        """A candidate's time on a problem; infinite where it cannot run."""
        recorded = next((c for c in self.candidates[problem] if c.name == candidate), None)
        return recorded.score.seconds if recorded is not None and recorded.score.ok else math.inf

    def best(self, problem: Problem) -> Recorded:
        """The fastest candidate."""
        return min(self.candidates[problem], key=lambda c: self.seconds(problem, c.name))


def matrices(records: Iterable[Record]) -> list[Matrix]:
    """A matrix for each kernel, device and environment in the records, which come oldest first.

    A candidate counts with its latest source; several measurements of one pair are combined as a program would. Problems
    on which nothing could run are left out.
    """
    kernels = grouped(records, _work)
    built = (Matrix(_candidates(group), group[0].measurement.environment) for group in kernels.values())
    return [matrix for matrix in built if matrix.candidates]


def _work(one: Measurement) -> tuple[object, ...]:
    problem = one.problem
    return problem.family, problem.kernel, problem.dtypes, problem.device, one.environment


def _candidates(records: Sequence[Record]) -> dict[Problem, tuple[Recorded, ...]]:
    latest = {(r.measurement.candidate, r.measurement.config): r.measurement.source_hash for r in records}
    order = {who: place for place, who in enumerate(latest)}
    measured = ((record, record.measurement) for record in records)
    current = [record for record, m in measured if latest[m.candidate, m.config] == m.source_hash]
    by_problem = {}
    for problem, rows in grouped(current, lambda one: one.problem).items():
        recorded = [_recorded(standing) for standing in standings(rows).values()]
        if any(candidate.score.ok for candidate in recorded):
            by_problem[problem] = tuple(sorted(recorded, key=lambda c: order[c.name, c.config]))
    return by_problem


def _recorded(standing: Standing) -> Recorded:
    """The candidate, with that one of its own measurements that says what the score says."""
    score = standing.score
    agreeing = [m for m in standing.measured if m.outcome is score.outcome]
    said = min(agreeing or standing.measured, key=lambda m: abs(summarise(m.samples)[0] - score.seconds) if score.ok else 0.0)
    predicted = math.inf if said.predicted is None else said.predicted
    return Recorded(said.candidate, said.config, said.origin, predicted, said, score)


@dataclass
class Device:
    """Stands in for the device on which a matrix was measured, and counts what it is asked."""

    matrix: Matrix
    tried: dict[tuple[Problem, str], int] = field(default_factory=dict)
    """How often each candidate was tried on each problem."""
    bursts: int = 0
    """Samples that races have asked for."""

    def attempt(self, problem: Problem, candidate: Candidate) -> Attempt:
        """The recorded Attempt of the candidate of that name on the problem; counted."""
        pair = problem, candidate.name
        self.tried[pair] = self.tried.get(pair, 0) + 1
        recorded = next((c for c in self.matrix.candidates.get(problem, ()) if c.name == candidate.name), None)
        if recorded is None:
            return Attempt(candidate, None, detail=f"{candidate.name!r} was not measured at {problem}")
        if not recorded.score.ok:
            return Attempt(candidate, recorded.measurement, detail=recorded.measurement.detail or _word(recorded))
        return Attempt(candidate, recorded.measurement, recorded.score.seconds, recorded.score.noise)

    def tune(self, task: Task) -> list[Attempt]:
        """A Tuner that returns the recorded Attempt of each candidate of the task."""
        return [self.attempt(task.problem, candidate) for candidate in task.candidates]

    def clock(self, problem: Problem) -> Callable[[Contender, int], float]:
        """Replaces measure.time_burst: repeats the recorded samples of the contender of that name."""
        samples = {c.name: _endless(c) for c in self.matrix.candidates[problem]}

        def time_burst(contender: Contender, repeats: int) -> float:
            self.bursts += 1
            return repeats * next(samples[contender.name])

        return time_burst


def _endless(candidate: Recorded) -> Iterator[float]:
    """Raises CandidateRejected, when asked, for a candidate without samples, which could not run."""
    if not candidate.measurement.samples:
        raise CandidateRejected(f"{candidate.name!r} has no samples to replay: {_word(candidate)}.")
    while True:
        yield from candidate.measurement.samples


def _word(candidate: Recorded) -> str:
    outcome = candidate.measurement.outcome
    return outcome.value if outcome is not Outcome.OK else "it has no time"


@dataclass(frozen=True)
class Choice:
    """What was chosen on one problem, on which grounds, its seconds, and the fastest candidate with its own."""

    problem: Problem
    candidate: str
    grounds: str
    seconds: float
    best: str
    best_seconds: float

    @property
    def regret(self) -> float:
        """How many times slower than the fastest; infinite where it cannot run."""
        return self.seconds / self.best_seconds


@dataclass(frozen=True)
class Report:
    """The choices over a matrix, and how many of its `size` measurements they took."""

    choices: tuple[Choice, ...]
    measured: int
    size: int

    @property
    def regret(self) -> float:
        """Geometric mean."""
        return statistics.geometric_mean(choice.regret for choice in self.choices)

    @property
    def worst(self) -> Choice:
        """The choice of the largest regret."""
        return max(self.choices, key=lambda choice: choice.regret)

    def quantile(self, share: float) -> float:
        """The regret that this share of the choices does not exceed."""
        return reached((choice.regret for choice in self.choices), share)


Chooser = Callable[[Problem, Sequence[Recorded]], tuple[str, str]]
"""(problem, its candidates) → the name of one of them, and on what grounds."""


def evaluate(matrix: Matrix, choose: Chooser, problems: Sequence[Problem] = (), device: Device | None = None) -> Report:
    """What `choose` would have cost on the problems, in this order (default: all of the matrix). What it asks `device` counts
    as its measurements."""
    device = device if device is not None else Device(matrix)
    choices = []
    for problem in problems or matrix.problems:
        name, grounds = choose(problem, matrix.candidates[problem])
        best = matrix.best(problem)
        choices.append(
            Choice(problem, name, grounds, matrix.seconds(problem, name), best.name, matrix.seconds(problem, best.name))
        )
    return Report(tuple(choices), len(device.tried), matrix.size)
