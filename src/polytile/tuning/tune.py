"""Trying the candidates of one problem: make them, check them, time them, and say what became of each.

A Task is plain data plus callables, and `tune` is the only thing that runs candidates on trial; a worker process that
keeps crashes and hangs away from the user's can be put behind `Tuner` without its callers noticing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.errors import CompilerMissing
from polytile.kernels.candidate import Candidate, Entry, PythonEntry
from polytile.problem import Measurement, Outcome, Problem
from polytile.runtime import compile as compiler
from polytile.tuning import measure
from polytile.tuning.environment import environment
from polytile.tuning.gate import Gate, Reference

WIDE_LIMIT_SECONDS = 0.05
"""Problems predicted to take longer have their reference run at the arguments' own precision: float64 would take as
long as all the rest of the tuning (a 4096² matmul on two cores: 1 s)."""

SETTLE_SECONDS = 5.0
"""How long timing may wait for compilers that this process has running."""


@dataclass(frozen=True)
class Task:
    """What to try, and on what. `args` is the caller's flat argument list, tensors first; `names` and `roles`
    describe the tensors; `reduction` is the number of terms that one output element sums."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    args: tuple[Any, ...]
    names: tuple[str, ...]
    roles: tuple[str, ...]
    reference: Reference | None = None
    reduction: int = 1
    predicted_seconds: float = 0.0
    check_accuracy: bool = True
    limits: measure.Limits = measure.LIMITS


@dataclass(frozen=True)
class Attempt:
    """What became of one candidate. `measurement` is None where nothing was learned about it (no compiler here)."""

    candidate: Candidate
    measurement: Measurement | None
    seconds: float = math.nan
    noise: float = math.inf
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.measurement is not None and self.measurement.outcome is Outcome.OK


Tuner = Callable[[Task], "list[Attempt]"]


def tune(task: Task) -> list[Attempt]:
    """Tries every candidate of the task in this process and thread; one Attempt each, in the same order.

    The caller's tensors and random state are unchanged afterwards. An IndexError of the reference, or of a candidate
    when there is no reference, is the caller's (an index argument out of range) and is raised.
    """
    attempts: dict[int, Attempt] = {}
    entries = _entries(task, attempts)
    with torch.no_grad(), _random_state_kept(task.args):
        gate = _gate(task)
        passed: dict[int, Entry] = {}
        errors: dict[int, float | None] = {}
        for index, entry in entries.items():
            failure = _trial(task, gate, index, entry, errors)
            if failure is None:
                passed[index] = entry
            else:
                attempts[index] = failure
        restore = gate.clones.restore if gate.clones.changes_its_input else None
        contenders = [
            measure.Contender(task.candidates[index].name, entry, gate.clones.args, restore)
            for index, entry in passed.items()
        ]
        compiler.settle(SETTLE_SECONDS)
        for index, timing in zip(passed, measure.race(contenders, task.limits), strict=True):
            attempts[index] = _timed(task, index, timing, errors[index])
    return [attempts[index] for index in range(len(task.candidates))]


def run_once(entry: Entry, args: Sequence[Any]) -> None:
    """One call. Raises what the kernel raises; IndexError when a native kernel's run-time check fails."""
    if isinstance(entry, PythonEntry):
        entry.call(*args)
    else:
        from polytile.runtime import launcher

        launcher.time_burst(entry, tuple(args), 1)


def measured(
    task: Task,
    index: int,
    outcome: Outcome,
    samples: tuple[float, ...] = (),
    max_error: float | None = None,
    detail: str = "",
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
        getattr(candidate, "compile_seconds", None),
        detail,
        environment=environment(),
    )


def _entries(task: Task, attempts: dict[int, Attempt]) -> dict[int, Entry]:
    """All candidates compiled, in parallel; those that are not to be had go into `attempts`."""
    for candidate in task.candidates:
        candidate.prepare()
    entries: dict[int, Entry] = {}
    for index, candidate in enumerate(task.candidates):
        try:
            entries[index] = candidate.entry()
        except CompilerMissing as error:
            attempts[index] = Attempt(candidate, None, detail=str(error))
        except Exception as error:
            attempts[index] = _failed(task, index, Outcome.COMPILE_ERROR, error)
    return entries


def _gate(task: Task) -> Gate:
    reference = task.reference if task.check_accuracy else None
    wide = task.predicted_seconds <= WIDE_LIMIT_SECONDS
    return Gate(task.args, task.roles, task.names, reference, task.reduction, wide)


def _trial(task: Task, gate: Gate, index: int, entry: Entry, errors: dict[int, float | None]) -> Attempt | None:
    """Runs one candidate through the gate; None if it passes, with its error noted in `errors`."""
    try:
        verdict = gate.check(lambda args: run_once(entry, args))
    except IndexError as error:
        if gate.unavailable:
            raise
        return _failed(task, index, Outcome.RAISED, error)
    except Exception as error:
        return _failed(task, index, Outcome.RAISED, error)
    errors[index] = verdict.max_error
    if verdict.ok:
        return None
    wrong = measured(task, index, Outcome.WRONG, max_error=verdict.max_error, detail=verdict.detail)
    return Attempt(task.candidates[index], wrong, detail=verdict.detail)


def _timed(task: Task, index: int, timing: measure.Timing, max_error: float | None) -> Attempt:
    if timing.error is not None:
        return _failed(task, index, Outcome.RAISED, timing.error)
    ok = measured(task, index, Outcome.OK, timing.samples, max_error)
    return Attempt(task.candidates[index], ok, timing.seconds, timing.noise)


def _failed(task: Task, index: int, outcome: Outcome, error: Exception) -> Attempt:
    detail = f"{type(error).__name__}: {error}"
    return Attempt(task.candidates[index], measured(task, index, outcome, detail=detail), detail=detail)


@contextlib.contextmanager
def _random_state_kept(args: Sequence[Any]) -> Iterator[None]:
    """Afterwards torch's random generators, the CPU's and those of the arguments' devices, are where they were."""
    devices = {arg.device.index for arg in args if isinstance(arg, torch.Tensor) and arg.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


__all__ = ["Attempt", "Task", "Tuner", "measured", "run_once", "tune"]
