"""Trying the candidates of one problem: make them, check them, time them, and say what became of each.

`tune` is the only thing that runs candidates on trial. What takes its place (links/measured.py) has the type `Tuner`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from polytile.errors import CompilerMissing
from polytile.kernels.candidate import Entry, PythonEntry, settle
from polytile.problem import Outcome
from polytile.runtime import compile as compiler
from polytile.tuning import measure
from polytile.tuning.gate import Gate
from polytile.tuning.isolation import attempts as isolated
from polytile.tuning.task import Attempt, Task, failed, measured, wrong

WIDE_LIMIT_SECONDS = 0.05
"""Problems predicted to take longer have their reference run at the arguments' own precision: float64 would take as
long as all the rest of the tuning (a 4096² matmul on two cores: 1 s)."""

SETTLE_SECONDS = 5.0
"""How long timing may wait for compilers that this process has running."""


Tuner = Callable[[Task], "list[Attempt]"]


def tune(task: Task) -> list[Attempt]:
    """Tries every candidate of the task; one Attempt each, in the same order. Those that the task names in `apart` run in a
    worker process first (isolation/); timing is in this process and thread, for those that came back with right results.
    Raises OutOfMemoryError where a GPU has no memory for trying any.

    The caller's tensors and random state are unchanged afterwards. An IndexError of the reference, or of a candidate
    when there is no reference, is the caller's (an index argument out of range) and is raised.
    """
    attempts: dict[int, Attempt] = {}
    for candidate in task.candidates:
        candidate.prepare()
    with torch.no_grad(), _random_state_kept(task.args), contextlib.closing(_gate(task)) as gate:
        tried = isolated.try_apart(task, gate, attempts)
        passed: dict[int, Entry] = {}
        errors: dict[int, float | None] = {}
        for index in range(len(task.candidates)):
            entry = None if index in attempts else _entry(task, index, attempts)
            if entry is None:
                continue
            failure = None
            if index in tried:
                errors[index] = tried[index]
            else:
                failure = _trial(task, gate, index, entry, errors)
            if failure is None:
                passed[index] = entry
            else:
                attempts[index] = failure
        restore = gate.clones.restore if gate.clones.changes_its_input else None
        contenders = [
            measure.Contender(
                task.candidates[index].name, entry, gate.clones.args, restore, measure.timer_for(task.target, entry)
            )
            for index, entry in passed.items()
        ]
        if task.target.type == "cpu":
            compiler.settle(SETTLE_SECONDS)
        for index, timing in zip(passed, measure.race(contenders, task.limits), strict=True):
            attempts[index] = _timed(task, index, timing, errors[index])
    return [attempts[index] for index in range(len(task.candidates))]


def run(entry: Entry, args: Sequence[Any]) -> None:
    """One call, on a GPU without waiting for it."""
    if isinstance(entry, PythonEntry):
        entry.call(*args)
    else:
        from polytile.runtime import launcher

        launcher.time_burst(entry, tuple(args), 1)


def run_once(entry: Entry, args: Sequence[Any]) -> None:
    """One call, to its end. Raises what the kernel raises; IndexError when a native kernel's run-time check fails."""
    run(entry, args)
    settle(entry)


def _entry(task: Task, index: int, attempts: dict[int, Attempt]) -> Entry | None:
    """The candidate's entry; None if it is not to be had, and then `attempts` says why."""
    candidate = task.candidates[index]
    try:
        return candidate.entry()
    except CompilerMissing as error:
        attempts[index] = Attempt(candidate, None, detail=str(error))
    except Exception as error:
        attempts[index] = failed(task, index, Outcome.COMPILE_ERROR, error)
    return None


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
        return failed(task, index, Outcome.RAISED, error)
    except Exception as error:
        return failed(task, index, Outcome.RAISED, error)
    errors[index] = verdict.max_error
    return None if verdict.ok else wrong(task, index, verdict)


def _timed(task: Task, index: int, timing: measure.Timing, max_error: float | None) -> Attempt:
    if timing.error is not None:
        return failed(task, index, Outcome.RAISED, timing.error)
    ok = measured(task, index, Outcome.OK, timing.samples, max_error)
    return Attempt(task.candidates[index], ok, timing.seconds, timing.noise)


@contextlib.contextmanager
def _random_state_kept(args: Sequence[Any]) -> Iterator[None]:
    """Afterwards torch's random generators, the CPU's and those of the arguments' devices, are where they were."""
    devices = {arg.device.index for arg in args if isinstance(arg, torch.Tensor) and arg.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


__all__ = ["Attempt", "Task", "Tuner", "measured", "run", "run_once", "tune"]
