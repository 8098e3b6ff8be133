"""The candidates of a Task that first run in a worker process: which of them were right, and how the others ended."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from polytile.candidates.handles import DeviceHandle, Handle, NativeHandle, PythonHandle
from polytile.errors import IndexOutOfRange
from polytile.problem import Outcome
from polytile.runtime.dispatcher import DECLINED
from polytile.tuning.gate import Gate, Verdict
from polytile.tuning.isolation import gpu, worker
from polytile.tuning.isolation.endings import Failure
from polytile.tuning.isolation.memory import Unavailable
from polytile.tuning.isolation.trial import Arena
from polytile.tuning.isolation.worker import Finished, Kind
from polytile.tuning.task import Attempt, Task, failed, measured, unmade, wrong

log = logging.getLogger("polytile.tuning")
_told: set[tuple[str, str]] = set()

SLOW_SECONDS = 3.0
"""A candidate whose first call took longer is not called again: that call is its measurement."""

AGAIN_SECONDS = 6e-3
"""A candidate runs several times if one run and the judging of it take no longer: more than the gate allows where kernels are
known, as this is where a race between threads has to show.

It need not: two threads that happen to run one after the other do no harm to each other."""


WORKERS = {"cpp": Kind.NATIVE, "triton": Kind.DEVICE}
"""The kind of worker that runs the kernels of a source. For other sources it is known once there is a kernel."""


def begin(task: Task) -> None:
    """Starts the workers that the task will need, while its reference runs and compilers work."""
    origins = {candidate.origin for candidate in task.candidates if candidate.name in task.isolated}
    for kind in {WORKERS[origin] for origin in origins & WORKERS.keys()}:
        worker.begin(kind, _index(task) if kind is Kind.DEVICE else 0)


class Trials:
    """The isolated trials of one task: on one copy of its arguments, which is made for the first of them; on a GPU many at once.
    Used in a `with`."""

    def __init__(self, task: Task, attempts: MutableMapping[int, Attempt]) -> None:
        self.task, self.attempts = task, attempts
        self._arena: Arena | None = None
        self._safe: set[int] = set()
        """Candidates whose first run on a GPU did no harm."""

    def first_runs(self) -> None:
        """Runs all candidates that are to be isolated, whatever they compute. What became of those that failed goes into
        `attempts`."""
        for number in range(len(self.task.candidates)):
            handle = self._handle(number) if self._wanted(number) else None
            if isinstance(handle, DeviceHandle):
                self._run_on_device(number, handle)
            elif handle is not None:
                self._run_once(number, handle)

    def _run_once(self, number: int, handle: NativeHandle | PythonHandle) -> None:
        try:
            arena = self._opened()
            arena.clones.restore()
            arena.run(handle, self.task.trial_seconds)
        except (Unavailable, Failure) as error:
            self._ended(number, error)

    def _opened(self) -> Arena:
        """The copy of the arguments. Raises Unavailable."""
        if self._arena is None:
            self._arena = Arena(self.task.args, self.task.roles)
        return self._arena

    def verdict(self, number: int, gate: Gate) -> Verdict | None:
        """Runs a candidate in the worker, if `task.isolated` names it, through the gate. The verdict if it came back right and
        may run here now; None if it was not to be isolated, or could not be, which is logged, or if the worker cannot tell
        right from wrong, as on a GPU. What became of it otherwise goes into `attempts`.

        Raises IndexError where there is no reference and the candidate finds an index out of range: the caller's fault.
        """
        if not self._wanted(number):
            return None
        handle = self._handle(number)
        if isinstance(handle, DeviceHandle):
            self._run_on_device(number, handle)
        elif handle is not None:
            return self._checked(number, handle, gate)
        return None

    def _checked(self, number: int, handle: NativeHandle | PythonHandle, gate: Gate) -> Verdict | None:
        task, slowest = self.task, 0.0

        def run(_: object) -> None:
            nonlocal slowest
            finished = arena.run(handle, task.trial_seconds)
            slowest = max(slowest, finished.seconds)
            if finished.code == DECLINED:
                raise Failure(Outcome.RAISED, f"it {task.candidates[number].declines}")
            if finished.code:
                raise IndexOutOfRange(f"run-time check {finished.code} of the kernel failed: an index is out of range.")

        try:
            arena = self._opened()
            verdict = gate.check(run, arena.clones, AGAIN_SECONDS)
        except (Unavailable, Failure) as error:
            self._ended(number, error)
        except IndexError as error:
            if gate.unavailable:
                raise
            self.attempts[number] = failed(task, number, Outcome.RAISED, error)
        else:
            if verdict.ok and slowest <= SLOW_SECONDS:
                return verdict
            if verdict.ok:
                about = measured(task, number, Outcome.OK, (slowest,), verdict.max_error)
                self.attempts[number] = Attempt(task.candidates[number], about, slowest)
            else:
                self.attempts[number] = wrong(task, number, verdict)
        return None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        if self._arena is not None:
            self._arena.close()

    def _wanted(self, number: int) -> bool:
        isolated = self.task.candidates[number].name in self.task.isolated
        return isolated and number not in self._safe and number not in self.attempts

    def _run_on_device(self, number: int, handle: DeviceHandle) -> None:
        """Runs a candidate on a worker's GPU, and with it all others that are compiled by now."""
        task, waiting = self.task, {number: handle}
        for other, candidate in enumerate(task.candidates):
            if other != number and self._wanted(other) and candidate.ready():
                its_handle = self._handle(other)
                if isinstance(its_handle, DeviceHandle):
                    waiting[other] = its_handle
        while waiting:
            try:
                ended = gpu.run_all(task.args, task.roles, list(waiting.values()), _index(task), task.trial_seconds)
            except Unavailable as reason:
                for left in waiting:
                    self._ended(left, reason)
                self._safe |= waiting.keys() - self.attempts.keys()
                return
            for one, how in zip(list(waiting), ended, strict=False):
                del waiting[one]
                self._judge(one, how)

    def _judge(self, number: int, how: Finished | Failure) -> None:
        task = self.task
        if isinstance(how, Failure):
            self._ended(number, how)
        elif how.beside is not None:
            name = gpu.block_name(task.args, task.roles, task.names, how.beside)
            self.attempts[number] = wrong(task, number, Verdict(False, None, f"wrote outside argument {name!r}"))
        else:
            self._safe.add(number)

    def _handle(self, number: int) -> Handle | None:
        """What the worker needs to find the kernel; None if it cannot be found, or there is no kernel."""
        try:
            handle = self.task.candidates[number].handle_for(self.task.args)
            if handle is None:
                raise Unavailable("it cannot be found from another process; make it a function of a module")
            return handle
        except Unavailable as reason:
            self._ended(number, reason)
        except Exception as error:
            self.attempts[number] = unmade(self.task, number, error)
        return None

    def _ended(self, number: int, how: Unavailable | Failure) -> None:
        """A failure is the candidate's. Where it could not be tried, logs once per reason that it runs here untried; or, if the
        task forbids that, records that it does not run at all."""
        candidate = self.task.candidates[number]
        if isinstance(how, Failure):
            about = measured(self.task, number, how.outcome, detail=how.detail)
            self.attempts[number] = Attempt(candidate, about, detail=f"{how.outcome.value}: {how.detail}")
        elif self.task.only_isolated:
            self.attempts[number] = Attempt(candidate, None, detail=f"cannot be tried in a worker process: {how}")
        elif (candidate.origin, str(how)) not in _told:
            _told.add((candidate.origin, str(how)))
            log.warning(
                "Candidate %r (%s) cannot be tried in a worker process (%s), so it is tried in this one.",
                candidate.name, candidate.origin, how,
            )  # fmt: skip


def _index(task: Task) -> int:
    return task.target.index or 0
