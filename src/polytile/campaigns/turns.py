"""Turns on a GPU that several workers of one host measure on: one of them at a time has kernels running there.

What a unit of work needs the host alone for takes longer than what runs on the device: predictions, what is on record, loading
and filing. So while one worker has its turn, the others do that for their own units.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event

import torch

from polytile.candidates.candidate import Candidate
from polytile.counters import counters
from polytile.runtime.cache import current
from polytile.tuning import tune
from polytile.tuning.task import Attempt, Task


class Turn:
    """A worker's turns on a device. The system ends the turn of a worker that is killed.

    Attributes
    ----------
    held
        Seconds of all turns so far.
    """

    def __init__(self, path: Path, settle: Callable[[], None] = torch.cuda.synchronize) -> None:
        self._path, self._settle = path, settle
        self._within = False
        self._waited, self._since = 0.0, 0.0
        self.held = 0.0

    @staticmethod
    def on_this_gpu() -> Turn:
        """Turns on this process's GPU, among the processes with the same cache directory."""
        return Turn(current().folder("tmp") / f"turn-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}")

    @property
    def waited(self) -> float:
        """Seconds that this worker has waited for its turn, until now."""
        since = self._since
        return self._waited + (time.monotonic() - since if since else 0.0)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Within the block nobody else has a turn; it ends once the device has done its work. Turns may be nested: a candidate on
        trial may choose kernels of its own."""
        if self._within:
            yield
            return
        with open(self._path, "a") as file:
            self._since = time.monotonic()
            fcntl.flock(file, fcntl.LOCK_EX)
            begun = time.monotonic()
            self._waited, self._since = self._waited + begun - self._since, 0.0
            os.utime(self._path)  # what nobody uses is cleared away
            self._within = True
            try:
                yield
            finally:
                with contextlib.suppress(RuntimeError):  # the trial that caused it has raised it, or will
                    self._settle()
                self._within = False
                self.held += time.monotonic() - begun

    def tune(self, task: Task) -> list[Attempt]:
        """What tune.tune does, as a turn that waits for no compiler."""
        wait_for_compilers(task.candidates)
        with self.taken():
            return tune.tune(task)


def wait_for_compilers(candidates: Sequence[Candidate]) -> None:
    """Wait until each candidate is compiled, or has failed."""
    waiting = []
    for candidate in candidates:
        candidate.prepare()
        if not candidate.ready() and not candidate.failed():
            done = Event()
            candidate.when_ready(done.set)
            waiting.append(done)
    if waiting:
        with counters.stage("compiling"):
            for done in waiting:
                done.wait()
