"""One thread that works while the program runs: it generates, compiles and measures what calls then find ready.

    submit(job)     done some day, the most urgent first
    wake(source)    has the thread hear what a source of jobs has to submit; waits for no lock
    wait()          until nothing is left to do
    is_here()       whether the caller is that thread

While nobody waits, the thread, and processes that work for it, leave the cores to calls (let_yield). Who waits lends them his own
priority. Most systems let a user lower a priority but not raise it again: there a thread or process takes the place of the one
that has yielded, and does its work.

The thread starts with the first job. A forked child has its parent's jobs but no thread, and starts one with its own first job.
At the end of the process what has not begun is dropped, and what runs is broken off.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import enum
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from polytile import locks
from polytile.runtime import openmp

log = logging.getLogger("polytile")

EXIT_SECONDS = 0.15
"""How long the end of the process waits for the job that runs to break off."""

REST = 3.0
"""A job that takes time from calls is followed by this many times as long without one, while the program makes calls. Where calls
keep two cores busy and leave one of them meanwhile (spare_core.py), that costs them a tenth of their speed."""

QUIET_SECONDS = 0.05
"""Where no call has come for so long, measuring disturbs nobody."""

SWITCH_SECONDS = 2e-5
"""How soon this thread gives Python's lock to a call that wants it, while it works. A call wants it after each of some hundred
operators: with 0.2 ms calls of a decoder of 6 layers on an H200 spent up to 150 ms waiting for it."""

THREAD_NICENESS, PROCESS_NICENESS = 10, 19
"""How much of a core this thread, and processes that work for it, leave to calls that want it. The thread holds Python's lock at
times, which a call may wait for, so it goes on with a tenth of a core at least."""


def yield_to_calls(task: int, niceness: int) -> None:
    """Has a thread, or a process with its group if it leads one, by its number in the system, leave the cores to those that calls
    run on. Does nothing where the system does not allow it, or has no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        _set_niceness(task, niceness)


def lend_priority(task: int) -> bool:
    """Gives such a thread or process the priority of the calling thread; says whether it has it, or is gone."""
    try:
        _set_niceness(task, os.getpriority(os.PRIO_PROCESS, 0))
    except PermissionError:
        return False
    except (OSError, AttributeError):
        pass
    return True


def _set_niceness(task: int, niceness: int) -> None:
    """Raises OSError where the system does not allow it or there is no such task, and AttributeError where it has no niceness."""
    # Linux may share the cores among sessions first, each of which has a niceness of its own: see "autogroup" in sched(7).
    with contextlib.suppress(OSError):
        if os.getsid(task) != os.getsid(0):
            Path(f"/proc/{task}/autogroup").write_text(str(niceness))
    os.setpriority(os.PRIO_PGRP if os.getpgid(task) == task else os.PRIO_PROCESS, task, niceness)


class Disturbance(enum.Enum):
    """What of a job's time is taken from calls: none that matters; what this thread computes, and others for it on a core that
    calls leave; all of it, as it runs kernels."""

    NONE = enum.auto()
    COMPUTES = enum.auto()
    MEASURES = enum.auto()


class Job(Protocol):
    """Something to do. What `run` raises is logged, and calls go on without."""

    def urgency(self) -> tuple[float, ...]:
        """Jobs with the largest go first. Asked each time when the thread is free, so that it may change."""

    def run(self) -> None: ...

    @property
    def disturbs(self) -> Disturbance:
        """What of its time it takes from calls."""


class Source(Protocol):
    """Something that has jobs to submit and no time to do so in the call that it noticed them in."""

    def hear(self) -> None:
        """Submits the jobs."""


class Background:
    """See the module. Any number of threads may call."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self._change = threading.Condition(self._lock)
        self._jobs: list[Job] = []
        self._sources: collections.deque[Source] = collections.deque()
        """Those that want to be heard."""
        self._hearing = locks.rlock()
        self._bell = threading.Lock()
        """Released when the thread has something to look at; it sleeps by acquiring it."""
        self._running: Job | None = None
        self._thread: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        """That thread, and those whose place it has taken that have not ended."""
        self._yielding: dict[int, Callable[[], None]] = {}
        """What leaves the cores to calls, by its number, and what ends it where its priority cannot be raised."""
        self._rest_until = 0.0
        self._waiting = self._held = 0
        self._closed = False
        self.helped = 0.0
        """Seconds in which another process has worked for this thread on a core that calls leave (spare_core.py)."""
        self.last_call = 0.0
        """When the last call of a compiled program ended, on time.monotonic's clock; infinity while one runs. Programs set it."""
        self.threads = 0
        """What torch.get_num_threads() said to that call; 0: there was none. Programs set it, and jobs find the same."""

    def submit(self, job: Job) -> None:
        with self._change:
            if self._closed:
                return
            self._jobs.append(job)
        self._ring()

    def wake(self, source: Source) -> None:
        self._sources.append(source)
        self._ring()

    def _ring(self) -> None:
        """Has the thread look at what there is to do."""
        if self._thread is None:
            self._start()
        try:
            self._bell.release()
        except RuntimeError:  # it rings already
            pass

    def _start(self) -> None:
        with self._change:
            if self._thread is None and not self._closed:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._thread = threading.Thread(
                    target=self._serve, args=(tuple(self._threads),), name="polytile-background", daemon=True
                )
                self._threads.append(self._thread)
                self._thread.start()

    def hear(self) -> None:
        """Lets the sources that want to be heard submit their jobs. They have when this returns."""
        with self._hearing:
            while self._sources:
                source = self._sources.popleft()
                try:
                    source.hear()
                except Exception:
                    log.warning("What calls have met is not looked at; they go on with what they have.", exc_info=True)

    def wait(self, timeout: float | None = None, kind: type = object) -> bool:
        """Waits until no job of this kind is left to do, at most `timeout` seconds; says whether that is so. Meanwhile the thread
        does not rest."""
        if self.is_here():
            return False
        self.hear()
        with self.hurried(), self._change:
            return self._change.wait_for(lambda: self._closed or not any(isinstance(j, kind) for j in self._left()), timeout)

    def _left(self) -> list[Job]:
        return [*([self._running] if self._running is not None else []), *self._jobs]

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Within the block somebody waits: the thread does not rest, and what works for it has the caller's priority."""
        with self._change:
            self._waiting += 1
            yielding, self._yielding = self._yielding, {}
        for task, end in yielding.items():
            if not lend_priority(task):
                end()
        self._ring()
        try:
            yield
        finally:
            with self._change:
                self._waiting -= 1

    def let_yield(self, task: int, niceness: int, end: Callable[[], None]) -> None:
        """Has a thread or process that works for this thread leave the cores to calls, until somebody waits. `end` is called then
        if it cannot have its priority back; what it was doing is to be done anew."""
        with self._change:
            if not self._waiting:
                self._yielding[task] = end
                yield_to_calls(task, niceness)

    def forget(self, task: int) -> None:
        """The thread or process has ended."""
        with self._change:
            self._yielding.pop(task, None)

    def _replace_thread(self) -> None:
        """Has another thread go on after the job that runs."""
        with self._change:
            self._thread = None
        self._start()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within the block no job begins: somebody works that wants Python's lock for himself."""
        with self._change:
            self._held += 1
        try:
            yield
        finally:
            with self._change:
                self._held -= 1
            self._ring()

    def is_behind_calls(self) -> bool:
        """Whether this thread works while calls go on: it has begun, and nobody waits for it."""
        return self._thread is not None and not self._waiting

    def is_quiet(self) -> bool:
        """Whether measuring disturbs nobody now: somebody waits for it, or no call has come for a while."""
        return self._waiting > 0 or time.monotonic() - self.last_call > QUIET_SECONDS

    def pending(self) -> list[Job]:
        """What has not been done yet."""
        self.hear()
        with self._lock:
            return self._left()

    def is_here(self) -> bool:
        return threading.current_thread() in self._threads

    def drop(self) -> None:
        """Forgets what has not begun."""
        self.hear()
        with self._change:
            self._jobs.clear()
            self._change.notify_all()

    def close(self) -> None:
        """Drops all jobs for good and breaks off the one that runs. A thread that came back from torch's code into an interpreter
        that has ended would take the process down."""
        with self._change:
            self._closed = True
            self._jobs.clear()
            self._change.notify_all()
            threads = [thread for thread in self._threads if thread.is_alive() and not self.is_here()]
        if self._thread is not None:
            self._ring()
        for thread in threads:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        for thread in threads:
            thread.join(EXIT_SECONDS)

    def _serve(self, after: Sequence[threading.Thread]) -> None:
        """Does one job after another, once these threads have ended, until another thread has taken this one's place."""
        for thread in after:
            thread.join()
        task = threading.get_native_id()
        while (job := self._next()) is not None:
            self.let_yield(task, THREAD_NICENESS, self._replace_thread)
            begun, computed = time.monotonic(), self._computed()
            interval = sys.getswitchinterval()
            sys.setswitchinterval(min(interval, SWITCH_SECONDS))
            if self.threads:
                openmp.set_threads(self.threads)
            try:
                job.run()
            except Exception:
                log.warning("Work in the background failed; calls go on with what they have.", exc_info=True)
            finally:
                openmp.end_team()
                sys.setswitchinterval(interval)
                with self._change:
                    self._running = None
                    now = time.monotonic()
                    taken = {
                        Disturbance.NONE: 0.0,
                        Disturbance.COMPUTES: self._computed() - computed,
                        Disturbance.MEASURES: now - begun,
                    }[job.disturbs]
                    self._rest_until = max(self._rest_until, now + REST * taken)
                    self._change.notify_all()
            del job
        self.forget(task)

    def _computed(self) -> float:
        return time.thread_time() + self.helped

    def _next(self) -> Job | None:
        """The job to do now, waited for; None once there will be no more. Jobs are ranked without the lock, which calls take that
        submit some."""
        while not self._closed and threading.current_thread() is self._thread:
            self.hear()
            rest = 0.0 if self.is_quiet() else self._rest_until - time.monotonic()
            with self._change:
                left = bool(self._jobs)
                jobs = [one for one in self._jobs if rest <= 0 or one.disturbs is Disturbance.NONE] if not self._held else ()
            job = max(jobs, key=lambda job: job.urgency(), default=None)
            with self._change:
                if job is not None and not self._held and any(job is one for one in self._jobs):
                    self._jobs = [one for one in self._jobs if one is not job]
                    self._running = job
                    return job
            if job is None:
                self._bell.acquire(timeout=min(rest, QUIET_SECONDS) if left and rest > 0 else -1)
        return None

    def after_fork(self) -> None:
        """In a forked child: the thread is not there, and what it was doing begins anew with the next job."""
        self._change = threading.Condition(self._lock)
        if self._running is not None:
            self._jobs.insert(0, self._running)
        self._running, self._thread, self._waiting, self._held = None, None, 0, 0
        self._threads, self._yielding = [], {}
        self._bell = threading.Lock()


background = Background()
submit, wake, wait, pending, is_here, drop = (
    background.submit, background.wake, background.wait, background.pending, background.is_here, background.drop,
)  # fmt: skip

atexit.register(background.close)
os.register_at_fork(after_in_child=background.after_fork)
