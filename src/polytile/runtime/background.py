"""The background thread: it generates, compiles and measures kernels while the program runs, so that calls find them
ready.

    submit(job)     queues a job; the most urgent runs first
    wake(source)    asks the thread to collect jobs from a source; takes no lock
    wait()          blocks until no job is left
    is_here()       whether the caller is the background thread

While nobody waits, the thread works for a bounded share of the time (REST), as do the processes that work for it (builder.py).
It has the priority of calls: on busy cores, a call would wait for the GIL as long as a thread of lower priority that holds it
waits for a core.

The first job starts the thread. A forked child inherits the parent's jobs but not the thread, and starts its own with
its first job. When the process ends, queued jobs are dropped and the running one is interrupted.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import contextvars
import ctypes
import enum
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol, TypeVar

from polytile import locks
from polytile.runtime import openmp
from polytile.runtime.cpu import thread_seconds

log = logging.getLogger("polytile")

EXIT_SECONDS, LONGEST_EXIT_SECONDS = 0.15, 20.0
"""How long process exit waits for the running job to stop; and at most, while an operator of it keeps a core busy."""

REST = 24.0
"""Work that takes time from calls is followed by a pause of this many times the time that it takes, as long as the program
makes calls: it is to take a twenty-fifth of their time. Compilers on their cores take more (docs/costs.md)."""

CALL_SECONDS = 2.0
"""Seconds that calls lose while this thread computes for one. They wait for the GIL, or for the thread of a parallel loop whose
core this thread has, and then for the data that it has driven out of the caches. Calls of a decoder on two cores lost 0.36 to
0.49 s to 0.20 s of predictions."""

QUIET_SECONDS = 0.05
"""Measuring disturbs nobody once no call has come for this long."""

SWITCH_SECONDS = 2e-5
"""Python's switch interval while the thread works: how soon it yields the GIL to a call. A call takes the GIL after
each of some hundred operators. With 0.2 ms, calls of a 6-layer decoder on an H200 spent up to 150 ms waiting for it."""


class Disturbance(enum.Enum):
    """How a job disturbs calls. NONE: hardly, or calls wait for its result, so that it must not wait for the end of a rest.
    COMPUTES: this thread computes. COMPILES: it does, and calls may leave a core to another process that works for the job.
    MEASURES: it keeps a GPU busy all of its time."""

    NONE = enum.auto()
    COMPUTES = enum.auto()
    COMPILES = enum.auto()
    MEASURES = enum.auto()


EVERY_DISTURBANCE = frozenset(Disturbance) - {Disturbance.NONE}


class Job(Protocol):
    """A unit of work. Exceptions from `run` are logged, and calls go on without its result."""

    def urgency(self) -> tuple[float, ...]:
        """Priority: the largest runs first. Queried whenever the thread is free, so it may change."""

    def run(self) -> None: ...

    @property
    def disturbs(self) -> Disturbance:
        """How much it disturbs calls."""


AnyJob = TypeVar("AnyJob", bound=Job)


class Source(Protocol):
    """An object that notices work during a call but has no time to submit it there."""

    def hear(self) -> None:
        """Submits the jobs."""


def _urgency(job: Job) -> tuple[float, ...]:
    """What the job says. One that fails to say it runs last."""
    try:
        return job.urgency()
    except Exception:
        log.debug("A job in the background cannot tell its urgency.", exc_info=True)
        return ()


def _run(job: Job) -> None:
    try:
        job.run()
    except Exception:
        log.warning("Background work failed; calls continue with their current kernels.", exc_info=True)


class Background:
    """See the module's docstring. Thread-safe."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self._change = threading.Condition(self._lock)
        self._jobs: list[Job] = []
        self._sources: collections.deque[Source] = collections.deque()
        """Sources that asked to be heard."""
        self._hearing = locks.rlock()
        self._bell = threading.Lock()
        """The thread sleeps by acquiring this lock; a release wakes it."""
        self._running: Job | None = None
        self._thread: threading.Thread | None = None
        self._rest_until = self._compile_rest_until = 0.0
        """Ends of the rest from what this thread has computed or measured, and of the rest from what another process has taken
        for it: a compiler takes so long that what needs none does not wait for the end of the latter."""
        self._interval = sys.getswitchinterval()
        """Python's switch interval while the thread sleeps."""
        self._within = 0.0
        """Seconds that this thread has computed for jobs within others, which are rested from by themselves."""
        self._waiting = self._held = 0
        self._closed = False
        self.helped = 0.0
        """Seconds that calls have lost by leaving a core to another process that works for this thread (spare_core.py)."""
        self.last_call = 0.0
        """End of the last call of a compiled program, on time.monotonic's clock; infinity while one runs. Set by programs."""
        self.seconds = self.tier0_seconds = 0.0
        """Seconds of the calls of compiled graphs so far, about, and of those that no program served. Set by programs."""
        self.threads = 0
        """torch.get_num_threads() in that call; 0 before the first. Set by programs. Jobs run with the same number."""

    def submit(self, job: Job) -> None:
        with self._change:
            if self._closed:
                return
            self._jobs.append(job)
        self._ring()

    def wake(self, source: Source) -> None:
        self._sources.append(source)
        if not self._rests():  # else the thread hears it after its rest, and no call is interrupted
            self._ring()

    def _ring(self) -> None:
        """Wakes the thread."""
        if self._thread is None:
            self._start()
        try:
            self._bell.release()
        except RuntimeError:  # already awake
            pass

    def _start(self) -> None:
        with self._change:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="polytile-background", daemon=True)
                self._thread.start()

    def hear(self) -> None:
        """Lets every source that asked to be heard submit its jobs; returns when they have."""
        with self._hearing:
            while self._sources:
                source = self._sources.popleft()
                try:
                    source.hear()
                except Exception:
                    log.warning("New work could not be collected; calls continue with their current kernels.", exc_info=True)

    def wait(self, timeout: float | None = None, kind: type = object) -> bool:
        """Waits up to `timeout` seconds until no job of this kind is left, and returns whether that is so. The thread does not
        rest until then."""
        if self.is_here():
            return False
        self.hear()
        with self.hurried(), self._change:
            return self._change.wait_for(lambda: self._closed or not any(isinstance(j, kind) for j in self._left()), timeout)

    def _left(self) -> list[Job]:
        return [*([self._running] if self._running is not None else []), *self._jobs]

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Keeps the thread from resting within the block, because the caller waits."""
        with self._change:
            self._waiting += 1
            self._change.notify_all()
        self._ring()
        try:
            yield
        finally:
            with self._change:
                self._waiting -= 1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Starts no job within the block, and goes on with none that asks for its `turn`: the caller needs the GIL for itself."""
        with self._change:
            self._held += 1
        try:
            yield
        finally:
            with self._change:
                self._held -= 1
                self._change.notify_all()
            self._ring()

    def turn(self) -> None:
        """Within a job, before it computes for long: waits while a caller needs the GIL for itself, unless somebody waits for the
        job. Loading the program of a training step beside the tracer made its call of 1.0 s take 2.2 s."""
        with self._change:
            self._change.wait_for(lambda: not self._held or self._waiting or self._closed or not self.is_here())

    def is_waited_for(self) -> bool:
        """Whether a caller waits for this thread."""
        return self._waiting > 0

    def is_quiet(self) -> bool:
        """Whether measuring disturbs nobody now: somebody waits for it, or no call has come for a while."""
        return self.is_waited_for() or time.monotonic() - self.last_call > QUIET_SECONDS

    def run_now(self, *kinds: type) -> None:
        """Runs the queued jobs of these kinds, for a job that needs what they do."""
        while True:
            with self._change:
                job = next((one for one in self._jobs if isinstance(one, kinds)), None)
                self._jobs = [one for one in self._jobs if one is not job]
            if job is None:
                return
            _run(job)

    def run_due(self, *kinds: type) -> None:
        """Runs the most urgent queued job of these kinds, unless the thread is to rest from it: for a job that waits for another
        process, holds no lock that these need, and is itself no more than a wait. Contexts of that job do not apply to it."""
        later = EVERY_DISTURBANCE if self._rests() else frozenset[Disturbance]()
        with self._change:
            jobs = [one for one in self._jobs if isinstance(one, kinds) and one.disturbs not in later]
        job = max(jobs, key=_urgency, default=None)
        with self._change:
            if job is None or self._held or not self._take(job):
                return
        before = time.thread_time()
        contextvars.Context().run(_run, job)
        computed = time.thread_time() - before
        self._within += computed
        if job.disturbs is not Disturbance.NONE:
            with self._change:
                self._rest(CALL_SECONDS * computed, 0.0)

    def _take(self, job: Job) -> bool:
        """Takes a job out of the queue, for who has the lock. Returns whether it was there."""
        left = [one for one in self._jobs if one is not job]
        found, self._jobs = len(left) < len(self._jobs), left
        return found

    def pending(self) -> list[Job]:
        """Jobs that are queued or running."""
        self.hear()
        with self._lock:
            return self._left()

    def next_jobs(self, kind: type[AnyJob], count: int) -> list[AnyJob]:
        """The queued jobs of a kind that are most urgent, at most so many, in this order."""
        with self._change:
            jobs = [job for job in self._jobs if isinstance(job, kind)]
        return sorted(jobs, key=_urgency, reverse=True)[:count]

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def drop(self) -> None:
        """Drops the queued jobs."""
        self.hear()
        with self._change:
            self._jobs.clear()
            self._change.notify_all()

    def close(self) -> None:
        """Drops all jobs for good and interrupts the running one, which it notices at its next step in Python.

        Up to 3.13, Python ends a thread that returns from C into a finalised interpreter by unwinding its stack. In torch's
        operators that ends the process: "terminate called without an active exception". So a thread that computes is waited for.
        One that waits itself, as for a compiler, has only C of Python's on its stack and may be left behind."""
        with self._change:
            self._closed = True
            self._jobs.clear()
            self._change.notify_all()
            thread = self._thread
        if thread is None or not thread.is_alive() or self.is_here():
            return
        self._ring()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        end, before = time.monotonic() + LONGEST_EXIT_SECONDS, -1.0
        while thread.is_alive() and time.monotonic() < end and before < (before := thread_seconds(thread.native_id or 0)):
            thread.join(EXIT_SECONDS)

    def _serve(self) -> None:
        """Does one job after another."""
        computed = 0.0
        self._wakes()
        while (job := self._next()) is not None:
            begun, found, helped, within = time.monotonic(), time.thread_time(), self.helped, self._within
            if self.threads:
                openmp.set_threads(self.threads)
            try:
                _run(job)
            finally:
                openmp.end_team()
                before, computed = computed, time.thread_time()
                own = CALL_SECONDS * (computed - before - (self._within - within))  # what finding the job took included
                taken = {
                    Disturbance.NONE: CALL_SECONDS * (found - before),
                    Disturbance.COMPUTES: own,
                    Disturbance.COMPILES: own,
                    Disturbance.MEASURES: max(own, time.monotonic() - begun),
                }[job.disturbs]
                with self._change:
                    self._running = None
                    self._rest(taken, self.helped - helped if job.disturbs is not Disturbance.NONE else 0.0)
                    self._change.notify_all()
            del job
        sys.setswitchinterval(self._interval)

    def _wakes(self) -> None:
        """From now on, a call that waits for the GIL gets it soon."""
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, SWITCH_SECONDS))

    def _sleep(self, seconds: float) -> None:
        """Sleeps until somebody rings, at most this many seconds; -1 means any number."""
        sys.setswitchinterval(self._interval)
        self._bell.acquire(timeout=seconds)
        self._wakes()

    def _rest(self, taken: float, helped: float) -> None:
        """Begins to rest from what this thread, and another process for it, have taken from calls. What delayed no call is
        followed by no rest."""
        factor, now = 0.0 if self.is_quiet() else REST, time.monotonic()
        self._rest_until = max(self._rest_until, now) + factor * taken
        self._compile_rest_until = max(self._compile_rest_until, now) + factor * helped

    def _rests(self) -> bool:
        """Whether the thread leaves all jobs that disturb calls until later."""
        return time.monotonic() < self._rest_until and not self.is_quiet()

    def _left_for_later(self) -> tuple[frozenset[Disturbance], float]:
        """Which jobs the thread leaves until later, and for how many seconds at most, -1 for none."""
        if self._rests():
            return EVERY_DISTURBANCE, self._rest_until - time.monotonic()
        left = self._compile_rest_until - time.monotonic()
        return (frozenset(), -1) if left <= 0 or self.is_quiet() else (frozenset({Disturbance.COMPILES}), left)

    def _next(self) -> Job | None:
        """Waits for the next job to run; None after `close`. Ranks the jobs without holding the lock, which submitting calls
        need."""
        while not self._closed:
            later, rest = self._left_for_later()  # before sources are heard: who does not ring in a rest is heard now or later
            self.hear()
            with self._change:
                jobs = [one for one in self._jobs if one.disturbs not in later] if not self._held else ()
            job = max(jobs, key=_urgency, default=None)
            with self._change:
                if job is not None and not self._held and self._take(job):
                    self._running = job
                    return job
            if job is None:
                self._sleep(max(0.0, min(rest, QUIET_SECONDS)) if later else -1)
        return None

    def after_fork(self) -> None:
        """In a forked child: there is no thread, and the job that it was running starts over with the next one."""
        self._change = threading.Condition(self._lock)
        if self._running is not None:
            self._jobs.insert(0, self._running)
        self._running, self._thread, self._waiting, self._held = None, None, 0, 0
        self._bell = threading.Lock()


background = Background()
submit, wake, wait, pending, is_here, drop = (
    background.submit, background.wake, background.wait, background.pending, background.is_here, background.drop,
)  # fmt: skip

atexit.register(background.close)
os.register_at_fork(after_in_child=background.after_fork)
