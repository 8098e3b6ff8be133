"""A Task says what to try. An Attempt says what the trial of one candidate found, with the Measurement that records it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.errors import CompilerMissing, DeviceLost, ResourcesExceeded
from polytile.ir.buffer import CPU
from polytile.problem import Measurement, Outcome, Problem, Scalar
from polytile.store.records import GATE
from polytile.tuning.environment import environment
from polytile.tuning.gate import Reference, Verdict
from polytile.tuning.limits import LIMITS, Limits
from polytile.tuning.sample import Sampler


@dataclass(frozen=True)
class Task:
    """What to try, and on what.

    args            the caller's flat argument list, tensors first
    names, roles    of the tensors (roles: dispatch/spec.py)
    reduction       the number of terms that one output element sums
    coarse          how far each tensor may be off for what is rounded on its way (candidates/roundings.py), if that is more
    predicted       the seconds that each candidate is expected to take
    check_accuracy  compare results with the reference before anything is timed
    limits          of the race
    isolated        names of candidates that run in a worker process first, for at most `trial_seconds` of processor time; with
                    `only_isolated` one that cannot is not used at all
    barred          names of candidates that failed before, and are none of `candidates`: a reference runs none of them
    target          the device that the kernel runs on
    seconds         once they have passed no further candidate is begun
    patient         nobody waits: candidates may run for as long as it takes
    whole           every candidate is measured, also those that can no longer win
    wide            whether the reference takes float64
    sampler         what is compared where all results would take too long or too much memory (sample.py)
    last_chance     no later call will be asked where this one has no memory to measure in
    kernel          its name for people
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    args: tuple[Any, ...]
    names: tuple[str, ...]
    roles: tuple[str, ...]
    reference: Reference | None = None
    reduction: int = 1
    coarse: tuple[float, ...] = ()
    predicted: tuple[float, ...] = ()
    check_accuracy: bool = True
    limits: Limits = LIMITS
    isolated: frozenset[str] = frozenset()
    trial_seconds: float = 10.0
    only_isolated: bool = False
    barred: frozenset[str] = frozenset()
    target: torch.device = CPU
    seconds: float = math.inf
    last_chance: bool = True
    kernel: str = ""
    sampler: Sampler | None = None
    wide: bool = True
    patient: bool = True
    whole: bool = False


@dataclass(frozen=True)
class Attempt:
    """The result of one candidate's trial. `measurement` is None if nothing was learned about it (no compiler here); `untried`
    says that time ran out first."""

    candidate: Candidate
    measurement: Measurement | None
    seconds: float = math.nan
    noise: float = math.inf
    detail: str = ""
    untried: bool = False

    @property
    def ok(self) -> bool:
        return self.measurement is not None and self.measurement.outcome is Outcome.OK


class Interrupted(KeyboardInterrupt):
    """Ctrl-C interrupted a task; `attempts` has the candidates with results so far."""

    def __init__(self, attempts: list[Attempt]) -> None:
        super().__init__()
        self.attempts = attempts


def measured(
    task: Task,
    index: int,
    outcome: Outcome,
    samples: tuple[float, ...] = (),
    max_error: float | None = None,
    detail: str = "",
    state: tuple[tuple[str, Scalar], ...] = (),
) -> Measurement:
    """The Measurement of the task's candidate number `index`."""
    candidate = task.candidates[index]
    return Measurement(
        task.problem,
        candidate.name,
        candidate.config,
        candidate.source_hash,
        outcome,
        samples,
        max_error,
        candidate.compile_seconds,
        detail,
        environment=environment(task.target),
        state=state,
    )


def failed(task: Task, index: int, outcome: Outcome, error: Exception) -> Attempt:
    """The Attempt of a candidate that raised `error`."""
    detail = f"{type(error).__name__}: {error}"
    return Attempt(task.candidates[index], measured(task, index, outcome, detail=detail), detail=detail)


def unmade(task: Task, index: int, error: Exception) -> Attempt:
    """The Attempt of a candidate that could not be made. Without a compiler, nothing is known about it. A lost device is no
    candidate's fault, and is raised."""
    if isinstance(error, DeviceLost):
        raise error
    if isinstance(error, CompilerMissing):
        return Attempt(task.candidates[index], None, detail=str(error))
    outcome = Outcome.RESOURCES if isinstance(error, ResourcesExceeded) else Outcome.COMPILE_ERROR
    return failed(task, index, outcome, error)


def wrong(task: Task, index: int, verdict: Verdict) -> Attempt:
    """The Attempt of a candidate that the gate rejected."""
    about = measured(task, index, Outcome.WRONG, max_error=verdict.max_error, detail=verdict.detail, state=(GATE,))
    return Attempt(task.candidates[index], about, detail=verdict.detail)
