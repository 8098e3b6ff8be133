"""The background thread: it generates, compiles and measures kernels while the program runs, so that calls find them
ready.

    submit(job)     queues a job; the most urgent runs first
    wake(source)    asks the thread to collect jobs from a source; takes no lock
    wait()          blocks until no job is left
    is_here()       whether the caller is the background thread

While nobody waits, the thread and the processes that work for it run at a low priority (let_yield). A caller that
waits lends them its own. Most systems let a user lower a priority but not raise it again; there, if other processes take
the cores, a new thread or process takes over the work of the one that has yielded.

The first job starts the thread. A forked child inherits the parent's jobs but not the thread, and starts its own with
its first job. When the process ends, queued jobs are dropped and the running one is interrupted.
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
from polytile.runtime import cpu, openmp

log = logging.getLogger("polytile")

EXIT_SECONDS = 0.15
"""How long process exit waits for the running job to stop."""

REST = 3.0
"""A job that takes time from calls is followed by a pause of this many times its duration, as long as the program makes
calls. Calls that keep two cores busy and leave one of them meanwhile (spare_core.py) lose a tenth of their speed this
way."""

QUIET_SECONDS = 0.05
"""Measuring disturbs nobody once no call has come for this long."""

SWITCH_SECONDS = 2e-5
"""Python's switch interval while the thread works: how soon it yields the GIL to a call. A call takes the GIL after
each of some hundred operators. With 0.2 ms, calls of a 6-layer decoder on an H200 spent up to 150 ms waiting for it."""

NICENESS = min(19, os.nice(0) + 10)
"""Niceness of the thread and of its worker processes. It leaves them a tenth of a core that others keep busy. The thread
needs that, as it sometimes holds the GIL while a call waits for it. The processes need it so that kernels are there within
a minute or two on a machine without an idle core; niceness 19 would leave them a seventieth."""


def yield_to_calls(task: int) -> None:
    """Lowers the priority of a thread or process, given by its system id, below that of calls. If the process leads a
    group, the whole group yields. Does nothing if the system forbids it or has no such task."""
    with contextlib.suppress(OSError, AttributeError):
        _set_niceness(task, NICENESS)


def lend_priority(task: int) -> bool:
    """Gives such a thread or process the priority of the calling thread. Returns whether it has that priority, or is
    gone."""
    try:
        _set_niceness(task, os.getpriority(os.PRIO_PROCESS, 0))
    except PermissionError:
        return False
    except (OSError, AttributeError):
        pass
    return True


def _set_niceness(task: int, niceness: int) -> None:
    """Raises OSError if the system forbids it or there is no such task, and AttributeError if it has no niceness."""
    # Linux may first share the cores among sessions, each with its own niceness: see "autogroup" in sched(7).
    with contextlib.suppress(OSError):
        if os.getsid(task) != os.getsid(0):
            Path(f"/proc/{task}/autogroup").write_text(str(niceness))
    os.setpriority(os.PRIO_PGRP if os.getpgid(task) == task else os.PRIO_PROCESS, task, niceness)


class Disturbance(enum.Enum):
    """How much of a job's time is taken from calls: a negligible part; the part computed by this thread, or for it by
    others on a core that calls leave free; all of it, since the job runs kernels."""

    NONE = enum.auto()
    COMPUTES = enum.auto()
    MEASURES = enum.auto()


class Job(Protocol):
    """A unit of work. Exceptions from `run` are logged, and calls go on without its result."""

    def urgency(self) -> tuple[float, ...]:
        """Priority: the largest runs first. Queried whenever the thread is free, so it may change."""

    def run(self) -> None: ...

    @property
    def disturbs(self) -> Disturbance:
        """How much of its time it takes from calls."""


class Source(Protocol):
    """An object that notices work during a call but has no time to submit it there."""

    def hear(self) -> None:
        """Submits the jobs."""


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
        self._threads: list[threading.Thread] = []
        """That thread, and the threads that it has replaced and that have not ended."""
        self._yielding: dict[int, Callable[[], None]] = {}
        """What runs at a low priority, by its system id, and the function that ends it if its priority cannot be raised."""
        self._rest_until = 0.0
        self._waiting = self._held = 0
        self._closed = False
        self.helped = 0.0
        """Seconds that another process has worked for this thread on a core that calls leave free (spare_core.py)."""
        self.last_call = 0.0
        """End of the last call of a compiled program, on time.monotonic's clock; infinity while one runs. Set by programs."""
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
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._thread = threading.Thread(
                    target=self._serve, args=(tuple(self._threads),), name="polytile-background", daemon=True
                )
                self._threads.append(self._thread)
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
        """Waits up to `timeout` seconds until no job of this kind is left, and returns whether that is so. The thread
        does not rest meanwhile."""
        if self.is_here():
            return False
        self.hear()
        with self.hurried(), self._change:
            return self._change.wait_for(lambda: self._closed or not any(isinstance(j, kind) for j in self._left()), timeout)

    def _left(self) -> list[Job]:
        return [*([self._running] if self._running is not None else []), *self._jobs]

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Keeps the thread from resting within the block, and gives what works for it the caller's priority, because the
        caller waits."""
        with self._change:
            self._waiting += 1
            yielding = list(self._yielding)
        raised = {task for task in yielding if lend_priority(task)}
        taken = len(raised) < len(yielding) and cpu.cores_are_taken()
        with self._change:  # what has ended meanwhile is no longer there
            ended = {task: self._yielding.pop(task) for task in yielding if task in self._yielding and (taken or task in raised)}
        for task, end in ended.items():
            if task not in raised:
                end()
        self._ring()
        try:
            yield
        finally:
            with self._change:
                self._waiting -= 1

    def let_yield(self, task: int, end: Callable[[], None]) -> None:
        """Lowers the priority of a thread or process that works for this thread until a caller waits.

        If it cannot get its priority back then, and other processes take the cores, `end` is called: the work that it was
        doing starts anew.
        """
        with self._change:
            if not self._waiting:
                self._yielding[task] = end
                yield_to_calls(task)

    def forget(self, task: int) -> None:
        """Tells that the thread or process has ended."""
        with self._change:
            self._yielding.pop(task, None)

    def _replace_thread(self) -> None:
        """Lets another thread continue after the running job."""
        with self._change:
            self._thread = None
        self._start()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Starts no job within the block, because the caller needs the GIL for itself."""
        with self._change:
            self._held += 1
        try:
            yield
        finally:
            with self._change:
                self._held -= 1
            self._ring()

    def is_behind_calls(self) -> bool:
        """Whether this thread works beside calls: it has started, and nobody waits for it."""
        return self._thread is not None and not self._waiting

    def is_quiet(self) -> bool:
        """Whether measuring disturbs nobody now: somebody waits for it, or no call has come for a while."""
        return self._waiting > 0 or time.monotonic() - self.last_call > QUIET_SECONDS

    def pending(self) -> list[Job]:
        """Jobs that are queued or running."""
        self.hear()
        with self._lock:
            return self._left()

    def is_here(self) -> bool:
        return threading.current_thread() in self._threads

    def drop(self) -> None:
        """Drops the queued jobs."""
        self.hear()
        with self._change:
            self._jobs.clear()
            self._change.notify_all()

    def close(self) -> None:
        """Drops all jobs for good and interrupts the running one. A thread that returned from torch's code into a
        finalised interpreter would crash the process."""
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
            self.let_yield(task, self._replace_thread)
            begun, computed = time.monotonic(), self._computed()
            interval = sys.getswitchinterval()
            sys.setswitchinterval(min(interval, SWITCH_SECONDS))
            if self.threads:
                openmp.set_threads(self.threads)
            try:
                job.run()
            except Exception:
                log.warning("Background work failed; calls continue with their current kernels.", exc_info=True)
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
        """Waits for the next job to run; None after `close`, or if another thread has taken over. Ranks the jobs without
        holding the lock, which submitting calls need."""
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
        """In a forked child: there is no thread, and the job that it was running starts over with the next one."""
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
