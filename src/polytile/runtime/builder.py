"""A process that generates and compiles code on behalf of this one, which leaves Python's GIL to calls.

    ask(what, given)    sends a request and waits for the answer; results go to the cache directory
    begin()             starts the process, since it will be needed soon
    stop()              ends it, along with its compilers

The process runs compiler/building.py. It starts with the first request, ends IDLE_SECONDS after the last one, and does
not outlive this process. Without an answer, the caller does the work itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polytile import locks
from polytile import options as settings
from polytile.counters import counters
from polytile.errors import PolytileError
from polytile.runtime import background, child_process, pytorch, spare_core
from polytile.runtime.cache import current
from polytile.runtime.child_process import NICENESS, ChildProcess, import_path
from polytile.runtime.cpu import usable_cores

SCRIPT = Path(__file__).parents[1] / "compiler" / "building.py"

SECONDS = 600.0
"""Timeout of an answer. The programs of large training steps take a minute on busy cores."""

END_SECONDS = 0.05
"""How long to wait for a process to end before killing it."""

EXIT_SECONDS = 2.0
"""How long to wait for the exit status of a process that has closed its end of the socket; on busy cores it takes a while."""

TAKEN = 0.1
"""What part of calls' speed the process takes at most where programs serve most calls: between compilers it rests. A call on two
cores that leaves one free takes twice as long."""

TIER0 = 0.5
"""It does not rest while calls without a program take more than this part of the time of all calls. A backward graph takes two
thirds of the time of a training step in which a program serves the forward graph."""

MOST_DEATHS = 3
"""Number of processes that may die without an answer. After that, the work is done in this process."""


class BuilderFailed(PolytileError):
    """The builder process did not answer, or reported why it cannot do the work."""


LINEAR = "linear"
"""Argument of the process: there are matrices whose products it can prepare for until it is asked for something."""


def _started(linear: bool = False) -> ChildProcess:
    own = {"PYTHONPATH": import_path(), "CUDA_VISIBLE_DEVICES": "", "POLYTILE_ISOLATION": "never"}
    try:
        return ChildProcess(SCRIPT, *([LINEAR] if linear else []), environment={**os.environ, **own}, niceness=NICENESS)
    except OSError as error:
        raise BuilderFailed(f"no process can be started ({error}).") from error


class _Builder:
    """This process's builder. Thread-safe: requests are answered one at a time."""

    def __init__(self) -> None:
        self.lock = locks.lock()
        self.process: ChildProcess | None = None
        self.deaths = 0
        self.asking = 0
        """The thread that waits for an answer; 0: none."""
        self.closed = False

    def running(self, linear: bool = False) -> ChildProcess:
        if self.process is not None and self.process.ended():
            self.process.close()  # it ended after a period without requests
            self.process = None
        if self.process is None:
            if self.closed or self.deaths >= MOST_DEATHS:
                raise BuilderFailed("this process is ending." if self.closed else f"it has died {self.deaths} times.")
            self.process = _started(linear)
        return self.process

    def stop(self) -> None:
        """Ends the process and everything that it started. Compilers remove their temporary files at the first signal."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
            process.last_words(END_SECONDS)
            if not process.ended():
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.end(END_SECONDS)


_builder = _Builder()


PASSES_SHOWN = 3
"""From this level of the option `debug`, a process prints how its programs are made."""


def wanted() -> bool:
    """Whether the options ask for work in the builder process, and the program may make calls during that work. False if
    `debug` prints the output of passes and schedules, since printed stages run in this process."""
    elsewhere = settings.get("builder") == "process" and settings.get("persist") and settings.get("debug") < PASSES_SHOWN
    return bool(elsewhere) and not _builder.closed


def begin(linear: bool = False) -> None:
    """Starts the process if it is not running; its imports take seconds. With `linear`, products of matrices of float32 are
    expected. Never blocks: if another thread is waiting for an answer, the process runs already."""
    if _builder.lock.acquire(blocking=False):
        try:
            with contextlib.suppress(BuilderFailed):  # reported to whoever asks
                _builder.running(linear)
        finally:
            _builder.lock.release()


def ask(what: str, given: Mapping[str, Any], seconds: float = SECONDS, meanwhile: Callable[[], None] | None = None) -> Any:
    """Sends the request `what`, one of those of compiler/building.py, and returns the answer as JSON values. The
    process's counts are added to this process's counters. Now and then while the process rests, this thread calls `meanwhile`,
    which may ask for nothing here. Raises BuilderFailed."""
    if _builder.asking == threading.get_ident():
        raise BuilderFailed("it works for this thread already.")
    with _builder.lock:
        _builder.asking = threading.get_ident()
        try:
            answer = _answer({"do": what, **here(), **given}, seconds, meanwhile)
        finally:
            _builder.asking = 0
    _builder.deaths = 0
    for name, count in answer["counts"].items():
        counters.add(name, count)
    if "error" in answer:
        raise BuilderFailed(answer["error"])
    return answer["value"]


def _answer(request: dict[str, Any], seconds: float, meanwhile: Callable[[], None] | None) -> dict[str, Any]:
    process = _builder.running()
    begun = background.background.seconds, background.background.tier0_seconds

    def heard(message: dict[str, Any]) -> None:
        _rest(message["seconds"], *begun, meanwhile)
        child_process.send(process.connection, {"do": "go"})

    try:
        return child_process.ask(process.connection, request, seconds, heard)
    except (OSError, ValueError) as error:
        status, words = process.last_words(EXIT_SECONDS if isinstance(error, ConnectionError) else END_SECONDS)
        _builder.deaths += 1
        _builder.stop()
        ending = "" if status is None else f" with status {status}" + (f", saying: {words}" if words else "")
        raise BuilderFailed(f"there was no answer: {error}{ending}") from error


def _rest(ran: float, before: float, tier0_before: float, meanwhile: Callable[[], None] | None = None) -> None:
    """Lets calls have all cores for a while after the process has worked for this many seconds, as long as programs serve them.
    The two numbers are those of the calls when the process was asked. Meanwhile the background notices new regimes, and does what
    `meanwhile` does."""
    alive, cores = background.background, usable_cores()
    end = time.monotonic() + ran * max(0.0, 1 / (TAKEN * cores) - 1)
    if not background.is_here() or pytorch.torch_threads() < cores:
        return
    with spare_core.given_back():
        while time.monotonic() < end and not (alive.is_quiet() or _builder.closed):
            if alive.tier0_seconds - tier0_before > TIER0 * (alive.seconds - before):
                break
            time.sleep(background.QUIET_SECONDS)
            alive.hear()
            if meanwhile is not None:
                meanwhile()


def here() -> dict[str, Any]:
    """The settings that must be equal there so that the same code results; and how many compilers may run side by side: unless
    somebody waits, as many as there are cores that calls leave free, since each further one would take a core from them."""
    options, threads = {name: settings.get(name) for name in settings.BY_NAME}, pytorch.torch_threads()
    if not options["compile_workers"] and not background.background.is_waited_for():
        options["compile_workers"] = max(1, usable_cores() - threads)
    return {"options": options, "root": str(current().root), "threads": threads}


def stop() -> None:
    """Ends the process; the next request starts another."""
    _builder.stop()


@atexit.register
def _close() -> None:
    _builder.closed = True
    _builder.stop()


def _after_fork() -> None:
    if _builder.process is not None:
        _builder.process.abandon()
    _builder.process, _builder.asking = None, 0


os.register_at_fork(after_in_child=_after_fork)
