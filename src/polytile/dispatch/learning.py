"""How a MultiKernel decides with the option stall="never": the dispatch table always answers, and the background decides.

    a call meets an open regime    the table runs a leaf (fallbacks.py) and notes the call    on the caller's thread
    Predict    what is known or predicted to be fastest is loaded and serves next             in the background
    Compile    the same, where that is not compiled yet                                       in the background
    Measure    the shortlist is compiled, checked and measured, on arguments made up for it   in the background
    Refine     the same at sizes that come often, in a regime that was measured at others     in the background
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.counters import counters
from polytile.dispatch import agreement, leases, recorded, refiner, selector, unmeasured
from polytile.dispatch.ahead import start_compiling
from polytile.dispatch.leases import Lease
from polytile.dispatch.links import measured
from polytile.dispatch.live import LiveTrial
from polytile.errors import DivisionByZero, HintError
from polytile.runtime import background, openmp, programs
from polytile.runtime import compile as compiling
from polytile.runtime.background import Disturbance
from polytile.runtime.dispatcher import deciding

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

LOOK_AGAIN_SECONDS = 0.05
"""How long an idle background waits before it looks again at what another process measures."""

AHEAD = 3
"""Regimes whose candidates are compiled for a GPU while those of another are measured: the compilers of one regime end one by
one, and then cores would be idle."""

_all: weakref.WeakSet[Learning] = weakref.WeakSet()


def wait(timeout: float | None = None) -> bool:
    """Waits until every decision that calls have asked for is made, and every program in C, at most `timeout` seconds. Returns
    whether all are made. Candidates that were on trial in the program's calls are then measured outside them."""
    end = None if timeout is None else time.monotonic() + timeout

    def left() -> float | None:
        return None if end is None else max(0.0, end - time.monotonic())

    openmp.end_team()  # beside it the background's loops start slowly, and parallel candidates lose
    with background.background.hurried():
        while True:
            if not background.wait(left()):
                return False
            for learning in list(_all):
                learning.give_up_trials()
            if not background.pending():
                return compiling.finish_background(left())


def is_settled() -> bool:
    """Whether every decision that calls have asked for is made, and no candidate is on trial in calls that still come."""
    trials = (trial for learning in list(_all) for trial in list(learning.trials.values()))
    return not background.pending() and not any(trial.is_under_way for trial in trials)


def go_on() -> None:
    """Does a job that needs no compiler, if one is due: for a job that waits for the process that compiles, and holds no kernel's
    lock. That process is paced where programs serve calls, and takes seconds."""
    background.background.run_due(Predict, Load, Judge, recorded.Resume)


class Learning:
    """The background jobs of one MultiKernel, at most one of each kind for a regime at a time."""

    def __init__(self, owner: MultiKernel) -> None:
        self._owner = weakref.ref(owner)
        self._asked: set[tuple[type[_Job], int]] = set()
        self.trials: dict[int, LiveTrial] = {}
        self.compiled_ahead: set[int] = set()
        """Regimes to measure whose candidates are being compiled."""
        _all.add(self)

    def wake(self) -> None:
        """Wakes the background. The dispatch table calls this during a call that it has noted."""
        background.wake(self)

    def hear(self) -> None:
        """Asks for jobs for the calls that the dispatch table has noted: the first in each undecided regime, and those that it
        watches for."""
        if (owner := self._owner()) is None:
            return
        for key, ints, pointers, callers in owner.dispatcher.notes():
            with programs.on_behalf(*callers):
                if owner.dispatcher.is_open(key):
                    counters.add("dispatch_misses")
                    owner.fill_open_regimes(ints, 1)
                    self._ask(Predict, key, ints, pointers)
                elif not owner.record_key(key):
                    self._ask(Judge if key in self.trials else Refine, key, ints, pointers)

    def load_when_compiled(self, form: Candidate) -> None:
        """Loads a form once it is compiled, to serve undecided regimes."""
        form.when_ready(lambda: background.submit(Load(self, self._owner, 0, (), (), frozenset(), form)))

    def compile(self, key: int, ints: tuple[int, ...], pointers: Sequence[int]) -> None:
        self._ask(Compile, key, ints, pointers)

    def measure(self, key: int, ints: tuple[int, ...]) -> None:
        self._ask(Measure, key, ints, ())

    def give_up_trials(self) -> None:
        """Ends all trials, and measures their candidates in the background instead."""
        for key in list(self.trials):
            trial = self.trials.pop(key, None)
            if trial is None:
                continue
            trial.end()
            trial.lease.give_back()
            self.measure(key, trial.request.ints)

    def _ask(self, kind: type[_Job], key: int, ints: tuple[int, ...], pointers: Sequence[int]) -> None:
        if (kind, key) not in self._asked:
            self._asked.add((kind, key))
            background.submit(kind(self, self._owner, key, ints, tuple(pointers), programs.running()))

    def done(self, job: _Job) -> None:
        self._asked.discard((type(job), job.key))


@dataclass(frozen=True, eq=False)
class _Job:
    """A job for the regime `key` of `owner`, at these integers, on behalf of the programs that met it. It is dropped once
    nobody holds the kernel."""

    learning: Learning
    owner: weakref.ref[MultiKernel]
    key: int
    ints: tuple[int, ...]
    pointers: tuple[int, ...]
    programs: frozenset[str]

    rank = 0.0

    @property
    def disturbs(self) -> Disturbance:
        """On a CPU, what is measured is computed by this thread; a GPU it keeps from calls while it waits."""
        owner = self.owner()
        return Disturbance.MEASURES if owner is not None and owner.spec.target.type == "cuda" else Disturbance.COMPILES

    def urgency(self) -> tuple[float, ...]:
        """Among jobs of a kind, what calls of the regime have spent in the kernel so far, in predicted seconds."""
        owner = self.owner()
        return self.rank, math.inf if owner is None else (1 + owner.dispatcher.calls(self.key)) * self._seconds

    @cached_property
    def _seconds(self) -> float:
        """Predicted seconds of a call as long as the regime is not decided."""
        owner = self.owner()
        return 0.0 if owner is None else owner.seconds_undecided(self.ints)

    def run(self) -> None:
        owner = self.owner()
        self.learning.done(self)
        if owner is not None:
            with torch.no_grad(), programs.on_behalf(*self.programs), deciding(), _beside_calls(owner.spec.target):
                self.work(owner)

    def work(self, owner: MultiKernel) -> None:
        raise NotImplementedError


class Predict(_Job):
    """Puts what an earlier process has decided, or what is known or predicted to be fastest, into the table. If that is to be
    compiled, it asks for it: the kernels of many regimes are loaded while one is compiled, and rested from."""

    disturbs = Disturbance.COMPUTES
    rank = 1.0

    def work(self, owner: MultiKernel) -> None:
        recorded.resume_regime(owner, owner.keys.unpack(self.key))
        if not unmeasured.decide(owner, self.ints, self.pointers, self.key, compiling=False):
            self.learning.compile(self.key, self.ints, self.pointers)
        owner.fill_open_regimes(self.ints)


class Compile(_Job):
    """Compiles what is predicted to be fastest, and puts it into the table."""

    disturbs = Disturbance.COMPILES
    rank = 1.0

    def work(self, owner: MultiKernel) -> None:
        unmeasured.decide(owner, self.ints, self.pointers, self.key, meanwhile=go_on)


@dataclass(frozen=True, eq=False)
class Load(_Job):
    """Loads a form of a candidate that has been compiled."""

    form: Candidate

    disturbs = Disturbance.NONE
    rank = 1.0
    _seconds = 0.0

    def work(self, owner: MultiKernel) -> None:
        if self.form.ready():
            owner.add_fallback(self.form)


class Measure(_Job):
    """Puts the candidate that was measured to be fastest into the table. While the program makes calls, and on a CPU as long as
    the threads of its loops are there, candidates are tried on its calls. If that is not possible, they are measured outside
    calls, with rests in between."""

    def work(self, owner: MultiKernel) -> None:
        if _compiles_beside(owner.spec.target):
            for job in (self, *background.background.next_jobs(Measure, AHEAD)):
                job.compile_ahead()
            self.learning.compiled_ahead.discard(self.key)
        if (args := _example_arguments(owner, self.ints, self.key)) is None:
            return
        if (lease := _take_lease(owner, args)) is None:
            background.submit(Await(self.learning, self.owner, self.key, self.ints, self.pointers, self.programs))
        elif not _measures_as_calls_run(owner.spec.target) and (trial := _begin_trial(owner, args)) is not None:
            trial.lease = lease
            self.learning.trials[self.key] = trial
        else:
            with owner.in_background(), counters.stage("choosing"):
                entry = owner.select(owner.planned_key(args), args)
                owner.dispatcher.insert(owner.dispatcher.key_of(*args), entry)
            lease.give_back()

    def compile_ahead(self) -> None:
        """Starts compiling what it will try, once."""
        owner, begun = self.owner(), self.learning.compiled_ahead
        if owner is None or not _compiles_beside(owner.spec.target) or self.key in begun:
            return
        begun.add(self.key)
        with contextlib.suppress(Exception), owner.in_background():  # its own turn meets the error again
            request = owner.request(self.key, self.ints, None)
            for candidate in sorted(measured.worth_measuring(request), key=lambda each: each.cost(request.sizes)):
                start_compiling(candidate)


class Await(_Job):
    """Waits a little, then checks whether another process has decided what it is measuring. All other jobs come first."""

    disturbs = Disturbance.NONE
    rank = -1.0

    def work(self, owner: MultiKernel) -> None:
        time.sleep(LOOK_AGAIN_SECONDS)
        self.learning.measure(self.key, self.ints)


class Judge(_Job):
    """Looks at the results of a trial, and decides if they are clear."""

    disturbs = Disturbance.NONE

    def work(self, owner: MultiKernel) -> None:
        trial = self.learning.trials.get(self.key)
        if trial is not None and _conclude(owner, trial):
            self.learning.trials.pop(self.key, None)
            trial.lease.give_back()


class Refine(_Job):
    """Measures at frequent sizes themselves, and puts what is better there into the table."""

    def work(self, owner: MultiKernel) -> None:
        with owner.in_background():
            due = refiner.is_due(owner, self.key, self.ints, self.pointers)
            owner.dispatcher.watch(self.key, owner.node(self.key).interval)
        if due and (args := _example_arguments(owner, self.ints, self.key)) is not None:
            with owner.in_background():
                refiner.refine(owner, owner.dispatcher.key_of(*args), args)


def _take_lease(owner: MultiKernel, args: tuple[Any, ...]) -> Lease | None:
    """Takes the lease to measure for the regime of these arguments. Returns None while another process or rank holds it."""
    with owner.in_background():
        request = owner.request(owner.planned_key(args), owner.spec.ints_of(args), args)
        return None if agreement.waits(request) else leases.take(request)


def _compiles_beside(target: torch.device) -> bool:
    """Whether compilers take nothing from what is measured for this device, nor from calls."""
    return target.type == "cuda"


def _measures_as_calls_run(target: torch.device) -> bool:
    """Whether candidates take as long on this thread now as in calls: none comes, and the threads that calls' loops have left
    waiting do not slow down the loops of this thread. Who waits has ended those threads."""
    alive = background.background
    crowded = target.type == "cpu" and not alive.is_waited_for() and openmp.is_crowded(alive.threads)
    return alive.is_quiet() and not crowded


def _begin_trial(owner: MultiKernel, args: tuple[Any, ...]) -> LiveTrial | None:
    """Begins a trial, on the program's own calls, of the candidates worth measuring in the regime of these arguments. Returns
    None if no trial is possible, or nothing is left to decide."""
    with owner.in_background():
        key = owner.dispatcher.key_of(*args)
        serving = owner.decision_of(key)
        if serving is None or serving.link not in selector.UNMEASURED:
            return None
        request = owner.request(key, owner.spec.ints_of(args), args)
        request.store.refresh()
        if selector.choose(dataclasses.replace(request, args=None), selector.ON_RECORD) is not None:
            return None  # another process has found it meanwhile
        trial = LiveTrial.begin(owner, key, request, serving.candidate)
        owner.learn(request)
        if serving.candidate in request.rejected:
            owner.drop(key)
        return trial


def _conclude(owner: MultiKernel, trial: LiveTrial) -> bool:
    """Decides the regime of a trial if its results suffice. Returns whether the trial is over."""
    with owner.in_background():
        try:
            answer = trial.judge()
        except LookupError:  # the entry that it was for is gone
            return True
        owner.learn(trial.request)
        if answer is None:
            return False
        trial.end()
        entry = owner.adopt(selector.decision_from(trial.request, "measured", answer), trial.request)
        if entry is not None:
            owner.enter(entry, trial.request)
        return True


@contextlib.contextmanager
def _beside_calls(target: torch.device) -> Iterator[None]:
    """Within the block, work on the device `target` does not disturb the program's own."""
    with contextlib.ExitStack() as stack:
        if target.type == "cuda":
            from polytile.runtime.cuda.beside import beside_calls  # what a GPU needs is imported where there is one

            stack.enter_context(beside_calls(target.index or 0))
        yield


def _example_arguments(owner: MultiKernel, ints: Sequence[int], key: int) -> tuple[Any, ...] | None:
    """Arguments of these sizes in the regime `key`. None if there are none: made-up tensors are aligned, and some numbers
    cannot be divided by."""
    try:
        args = owner.spec.arguments_for(owner.spec.sizes(ints))
        return args if owner.dispatcher.key_of(*args) == key else None
    except (HintError, DivisionByZero):
        return None
