"""Tries the candidates of one problem: makes them, checks them, times them, and reports the result of each.

Only `tune` runs candidates on trial. A replacement (links/measured.py) has the type `Tuner`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, PythonEntry
from polytile.counters import counters
from polytile.errors import DeviceLost
from polytile.host_time import host_seconds, weighed
from polytile.problem import Outcome, time_text
from polytile.runtime import background
from polytile.runtime import compile as compiler
from polytile.store.records import DISTURBED, LEAST_REGION, REGION
from polytile.tuning import hopeless, measure, progress, racing
from polytile.tuning.budget import clock, share_of
from polytile.tuning.decide import UNKNOWN, Entrant
from polytile.tuning.gate import Gate, OfCandidates, Verdict
from polytile.tuning.headroom import NoHeadroom, host_is_quick, own_fits, wide_fits
from polytile.tuning.isolation import attempts as isolated
from polytile.tuning.limits import within
from polytile.tuning.sample import SampledGate
from polytile.tuning.task import Attempt, Interrupted, Task, failed, measured, unmade, wrong

WIDE_LIMIT_SECONDS = 0.05
"""If a problem is predicted to take longer, only samples of its results are compared, or, if there is no sampler, the reference
runs at the arguments' own precision: float64 would take as long as the rest of the tuning (a 4096² matmul on two cores: 1 s)."""

SETTLE_SECONDS = 5.0
"""How long timing may wait for this process's running compilers."""


Tuner = Callable[[Task], "list[Attempt]"]


def tune(task: Task) -> list[Attempt]:
    """Tries every candidate of the task; returns one Attempt for each, in the same order. The task's `isolated` candidates
    first run in a worker process (isolation/). Those with right results are then timed in this process and thread. Raises
    OutOfMemoryError if a GPU has no memory to try any candidate, NoHeadroom if it has too little to spare.

    The caller's tensors and random state are unchanged afterwards. An IndexError of the reference, or of a candidate if there
    is no reference, is the caller's (an index argument out of range) and is raised. Ctrl-C raises Interrupted with the results
    so far.

    Dispatch modes do not see the trials, neither the user's nor AOTAutograd's own around the first call of a program: with
    them, each operator of a library's candidate would take 10 µs longer, which is 15 % of a product of 32×1024×1024.
    """
    with torch._C._DisableTorchDispatch():
        return _Trial(task).run()


def check(task: Task) -> tuple[list[tuple[Candidate, Entry, float | None]], list[Attempt]]:
    """Makes the task's candidates and compares their results as `tune` does, but times none. Returns those that are right, with
    their entries and errors, and the Attempts of the others."""
    with torch._C._DisableTorchDispatch():
        return _Trial(task).check()


class _Trial:
    """A task under way. Candidates are tried in the order of their predictions, so that the budget leaves out the least
    promising."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.attempts: dict[int, Attempt] = {}
        self.passed: dict[int, tuple[Entry, float | None]] = {}
        """Entry and error found of each candidate that may be timed."""
        self.first: dict[int, float] = {}
        """Seconds of the first run of each of them."""
        self.ran = 0.0
        """Seconds that candidates have run for, and that their results were compared for."""
        self.begun = clock()
        self.standing = hopeless.Standing()

    @property
    def left(self) -> float:
        """Seconds until no further candidate may be tried."""
        return min(self.task.seconds - (clock() - self.begun), self._share)

    @property
    def _share(self) -> float:
        """What is left of the time that a waiting call may spend on its problem."""
        if self.task.patient or not self.first:
            return math.inf
        return share_of(min(self.first.values())) - self.ran

    def run(self) -> list[Attempt]:
        task = self.task
        self._compile()
        try:
            with torch.no_grad(), _random_state_kept(task.args), contextlib.ExitStack() as held:
                with counters.stage("checking"):
                    gate = self._checked(held)
                with counters.stage("measuring"):
                    self._time_all(gate)
        except KeyboardInterrupt:
            raise Interrupted([self.attempts[index] for index in sorted(self.attempts)]) from None
        finally:
            self._tell("", finished=True)
        return [self.attempts[index] for index in range(len(task.candidates))]

    def check(self) -> tuple[list[tuple[Candidate, Entry, float | None]], list[Attempt]]:
        self._compile()
        with torch.no_grad(), _random_state_kept(self.task.args), counters.stage("checking"), contextlib.ExitStack() as held:
            self._checked(held)
        right = [(self.task.candidates[index], entry, error) for index, (entry, error) in sorted(self.passed.items())]
        return right, [self.attempts[index] for index in sorted(self.attempts)]

    def _compile(self) -> None:
        """Has all candidates compiled, the best predicted first."""
        for index in self._ranked:
            self.task.candidates[index].prepare()
        isolated.begin(self.task)

    @property
    def _ranked(self) -> list[int]:
        promise = dict(enumerate(self.task.predicted))
        return sorted(range(len(self.task.candidates)), key=lambda index: promise.get(index, 0.0))

    def _checked(self, held: contextlib.ExitStack) -> Gate:
        """The gate after the candidates went through it; `held` closes it."""
        with isolated.Trials(self.task, self.attempts) as trials:
            gate = held.enter_context(contextlib.closing(_gate(self._with_safe_reference(trials))))
            self._check_all(gate, trials)
        return gate

    def _with_safe_reference(self, trials: isolated.Trials) -> Task:
        """The task with a reference that runs no candidate which has to run in the worker first and has failed there."""
        task = self.task
        if not isinstance(task.reference, OfCandidates):
            return task
        trials.first_runs()
        failed = {task.candidates[index].name for index in self.attempts}
        return dataclasses.replace(task, reference=task.reference.without(failed | task.barred))

    def _check_all(self, gate: Gate, trials: isolated.Trials) -> None:
        """Makes the candidates and compares their results, each first in the worker if it has to be."""
        for index in self._ranked:
            self._tell(self.task.candidates[index].name)
            if why := self._left_out(index):
                self.attempts.setdefault(index, _untried(self.task, index, why))
                continue
            verdict = trials.verdict(index, gate)
            if index in self.attempts:
                continue
            entry = _entry(self.task, index, self.attempts)
            if entry is None:
                continue
            failure = verdict if verdict is not None else self._tried(gate, index, entry)
            if isinstance(failure, Attempt):
                self.attempts[index] = failure
            else:
                self.passed[index] = entry, failure.max_error
                self._time_roughly(gate, index)

    def _left_out(self, index: int) -> str:
        """Why a candidate is not tried; "" where it is. What can no longer win is not compiled."""
        task, candidate = self.task, self.task.candidates[index]
        if self.left <= 0 and self.passed:
            return f"the {task.seconds:.3g} s for measuring were over"
        if not self._still_compiles(index) or not self.standing.cannot_win(candidate.origin, task.predicted[index]):
            return ""
        candidate.call_off()
        return f"predicted {time_text(task.predicted[index])}, it cannot be faster than {time_text(self.standing.best)}"

    def _still_compiles(self, index: int) -> bool:
        """Whether a candidate for a GPU is being compiled. What is timed on a CPU meanwhile is timed beside compilers."""
        candidate = self.task.candidates[index]
        ends = self.task.target.type == "cuda" and not self.task.whole and index < len(self.task.predicted)
        return ends and not candidate.ready() and not candidate.failed()

    def _time_roughly(self, gate: Gate, index: int) -> None:
        """Times a candidate that has passed, if others still wait for a compiler."""
        others = (other for other in range(len(self.task.candidates)) if other not in self.attempts and other not in self.passed)
        if not any(map(self._still_compiles, others)):
            return
        contender, candidate = self._contender(gate, index, UNKNOWN), self.task.candidates[index]
        with contextlib.suppress(Exception):  # what fails later counts
            if contender.restore is not None:
                contender.restore()
            seconds = measure.time_burst(contender, hopeless.BURST) / hopeless.BURST
            host = host_seconds(self.task.problem.family, candidate.origin, self.task.target.type)
            self.standing.add(candidate.origin, weighed(seconds, host), self.task.predicted[index])
        if contender.timer is not None:
            contender.timer.release()

    def _tried(self, gate: Gate, index: int, entry: Entry) -> Verdict | Attempt:
        """Runs a candidate through the gate, and records how long that takes."""
        begun, runs, misses = clock(), list[float](), counters["dispatch_misses"]

        def run(args: Sequence[Any]) -> None:
            started = clock()
            run_once(entry, args)
            runs.append(clock() - started)

        outcome = _trial(self.task, gate, index, run)
        if counters["dispatch_misses"] != misses:
            return outcome  # kernels that the candidate calls were chosen and compiled in its first run, which says nothing then
        self.ran += clock() - begun
        if isinstance(outcome, Verdict) and runs:
            self.first[index] = runs[0]
        return outcome

    def _time_all(self, gate: Gate) -> None:
        """Races the candidates that may be timed, the best predicted first. After an interrupt, the race's results so far are
        kept."""
        entrants = self._entrants()
        contenders = [self._contender(gate, index, entrant) for index, entrant in entrants.items()]
        order = list(entrants)
        if self.task.target.type == "cpu":
            compiler.settle(min(SETTLE_SECONDS, max(0.0, self.left)))
        self._tell("timing")
        try:
            timings = racing.race(contenders, within(self.task.limits, self.left))
        except racing.Stopped as stopped:
            self._keep(order, stopped.timings)
            raise
        self._keep(order, timings)

    def _contender(self, gate: Gate, index: int, entrant: Entrant) -> measure.Contender:
        entry, _ = self.passed[index]
        restore = gate.clones.restore if gate.clones.changes_its_input else None
        timer = measure.timer_for(self.task.target, entry)
        name, first = self.task.candidates[index].name, self.first.get(index)
        entry = entry.timed if isinstance(entry, PythonEntry) else entry
        return measure.Contender(name, entry, gate.clones.args, restore, timer, entrant, first)

    def _entrants(self) -> dict[int, Entrant]:
        """The candidates that may be timed, by index, in the order of `decide.pick`."""
        promise = dict(enumerate(self.task.predicted))
        passed = {index: self.task.candidates[index] for index in sorted(self.passed)}
        where = self.task.problem.family, self.task.target.type
        known = {
            index: Entrant.known(promise.get(index, math.inf), candidate.config, candidate.origin, *where)
            for index, candidate in passed.items()
        }
        return dict(sorted(known.items(), key=lambda pair: pair[1].order))

    def _keep(self, order: Sequence[int], timings: Sequence[measure.Timing]) -> None:
        for index, timing in zip(order, timings, strict=True):
            if timing.samples or timing.error is not None:
                self.attempts[index] = _timed(self.task, index, timing, self.passed[index][1])

    def _tell(self, doing: str, finished: bool = False) -> None:
        task = self.task
        done = [attempt for attempt in self.attempts.values() if attempt.ok and not math.isnan(attempt.seconds)]
        best = min(done, key=lambda attempt: attempt.seconds, default=None)
        name, seconds = (best.candidate.name, best.seconds) if best is not None else ("", math.nan)
        checked = len(self.attempts.keys() | self.passed.keys())
        progress.report_step(
            progress.Step(
                task.kernel or task.problem.family, task.problem.sizes, len(task.candidates), checked, doing,
                name, seconds, self.left, finished,
            )
        )  # fmt: skip


def run(entry: Entry, args: Sequence[Any]) -> None:
    """Makes one call; on a GPU, does not wait for it."""
    if isinstance(entry, PythonEntry):
        entry.call(*args)
    else:
        from polytile.runtime import launcher

        launcher.time_burst(entry, tuple(args), 1)


def run_once(entry: Entry, args: Sequence[Any]) -> None:
    """Makes one call and waits for its end. Raises what the kernel raises, and IndexError if a native kernel's run-time check
    fails."""
    run(entry, args)
    entry.synchronise()


def _entry(task: Task, index: int, attempts: dict[int, Attempt]) -> Entry | None:
    """The candidate's entry; None if it cannot be made, and then `attempts` says why."""
    candidate = task.candidates[index]
    try:
        return candidate.entry()
    except Exception as error:
        attempts[index] = unmade(task, index, error)
    return None


def _gate(task: Task) -> Gate:
    """The gate, with its reference in the best precision and place that memory allows, or for samples of what a long call
    computes. Raises NoHeadroom where memory allows neither."""
    reference = task.reference if task.check_accuracy else None
    wide, on_host = True, False
    long = min(task.predicted, default=0.0) > WIDE_LIMIT_SECONDS
    if reference is not None and (sampled := _sampled(task) if long else None) is not None:
        return sampled
    if reference is None:
        wide = False
    elif task.wide and min(task.predicted, default=0.0) <= WIDE_LIMIT_SECONDS and wide_fits(task.args, task.roles):
        pass
    elif own_fits(task.args, task.roles):
        wide = False
    elif host_is_quick(task.predicted, task.last_chance):
        on_host = True
    elif (sampled := _sampled(task)) is not None:
        return sampled
    else:
        raise NoHeadroom("checking results would take more of the device's memory than it has to spare")
    return Gate(task.args, task.roles, task.names, reference, task.reduction, wide, on_host, task.coarse)


def _sampled(task: Task) -> Gate | None:
    """A gate for some of the results; None where they cannot be told apart."""
    samples = task.sampler(task.args, torch.float64) if task.sampler is not None else None
    if task.sampler is None or samples is None:
        return None
    return SampledGate(task.args, task.roles, task.names, task.sampler, samples, task.reduction, task.coarse)


def _trial(task: Task, gate: Gate, index: int, run: Callable[[Sequence[Any]], None]) -> Verdict | Attempt:
    """Runs one candidate through the gate in this process. Returns the verdict if it passes, else its Attempt."""
    try:
        verdict = gate.check(run)
    except DeviceLost:
        raise
    except IndexError as error:
        if gate.unavailable:
            raise
        return failed(task, index, Outcome.RAISED, error)
    except Exception as error:
        return failed(task, index, Outcome.RAISED, error)
    return verdict if verdict.ok else wrong(task, index, verdict)


def _untried(task: Task, index: int, why: str) -> Attempt:
    return Attempt(task.candidates[index], None, detail=f"not tried: {why}", untried=True)


def _timed(task: Task, index: int, timing: measure.Timing, max_error: float | None) -> Attempt:
    if timing.error is not None:
        return failed(task, index, Outcome.RAISED, timing.error)
    region = timing.region
    parallel = {} if math.isnan(region.seconds) else {REGION: region.seconds, LEAST_REGION: region.least}
    busy = {DISTURBED: round(timing.disturbed, 3)} if timing.disturbed else {}
    state = tuple({**parallel, **busy}.items())
    ok = measured(task, index, Outcome.OK, timing.samples, max_error, state=state)
    return Attempt(task.candidates[index], ok, timing.seconds, timing.noise)


@contextlib.contextmanager
def _random_state_kept(args: Sequence[Any]) -> Iterator[None]:
    """Restores torch's random generators, the CPU's and those of the arguments' devices, after the block. In the background
    nothing draws from them, but the program may."""
    if background.is_here():
        yield
        return
    devices = {arg.device.index for arg in args if isinstance(arg, torch.Tensor) and arg.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield
