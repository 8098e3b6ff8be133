"""Reports the progress of measuring to watchers.

Reporting costs nothing without a watcher. `polytile tune` is one; others are the line on a terminal while somebody waits, and
the lines of the option `progress` (report/progress.py).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from polytile import locks
from polytile.problem import sizes_text, time_text

log = logging.getLogger("polytile.tuning")


@dataclass(frozen=True)
class Step:
    """Progress of one problem: the number of its candidates that are checked, or, if it is `finished`, the fastest one.

    `best` is the fastest so far, of this problem; empty while none has been timed. `left` is what the tightest budget
    has left, in seconds.
    """

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    candidates: int
    checked: int
    doing: str
    best: str = ""
    seconds: float = math.nan
    left: float = math.inf
    finished: bool = False

    @property
    def problem(self) -> str:
        return f"{self.kernel} {sizes_text(self.sizes, ' ')}".rstrip()

    def __str__(self) -> str:
        """One line: "softmax n0=64 n1=512: persistent t2 4.69 µs, best of 3"."""
        if not self.finished:
            return f"{self.problem}: {self.doing}, {self.checked} of {self.candidates} candidates checked"
        best = f"{self.best} {time_text(self.seconds)}, best" if self.best else "none could be used"
        return f"{self.problem}: {best} of {self.candidates}"


Watcher = Callable[[Step], None]
_watchers: list[Watcher] = []
_lock = locks.lock()


def watch(watcher: Watcher) -> None:
    """Tells `watcher` of every step from now on, in the thread that takes it."""
    with _lock:
        _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Tells `watcher` no more."""
    with _lock:
        _watchers.remove(watcher)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within the block `watcher` is called at every step."""
    watch(watcher)
    try:
        yield
    finally:
        unwatch(watcher)


def report_step(step: Step) -> None:
    """Tells all watchers, and the log of finished problems."""
    if step.finished:
        log.info("%s", step)
    for watcher in tuple(_watchers):
        watcher(step)
