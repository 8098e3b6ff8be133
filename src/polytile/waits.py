"""What a call or a command waits for. On a terminal it is shown once it takes more than a second, and in a log never.

Work that nobody waits for, such as compiling in the background, is not shown: the terminal then belongs to the program.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from polytile import locks, options

SECONDS = 1.0
"""How long something may take before it is shown."""


class Shown(Protocol):
    """What is on the terminal."""

    def close(self) -> None:
        """Takes it off."""


Opener = Callable[["Wait"], Shown]


class Wait:
    """What one thread waits for: `doing` has the outermost block first. `since` is on time.monotonic's clock."""

    def __init__(self, what: str, opener: Opener) -> None:
        self.doing, self.since = [what], time.monotonic()
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._opener: Opener | None = opener
        self._lock = locks.lock()
        self._shown: Shown | None = None
        self._timer = threading.Timer(SECONDS, self._show)
        self._timer.daemon = True
        self._timer.start()

    def is_here(self) -> bool:
        """Whether it is this thread that waits."""
        return self._thread == threading.get_ident() and self._process == os.getpid()

    def end(self) -> None:
        """Takes off what is shown; nothing comes later."""
        self._timer.cancel()
        with self._lock:
            self._opener = None
            shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()

    def _show(self) -> None:
        with self._lock:
            if self._opener is not None:
                self._shown = self._opener(self)


_lock = locks.lock()
_opener: Opener | None = None
_wait: Wait | None = None


def show_by(opener: Opener) -> None:
    """Has waits shown by what `opener` returns; it is called in a thread of its own."""
    global _opener
    _opener = opener


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """Within the block this thread waits for `what`, such as "compiling"."""
    wait = _wait
    if wait is not None and wait.is_here():
        wait.doing.append(what)
        try:
            yield
        finally:
            wait.doing.pop()
        return
    begun = _begun(what)
    try:
        yield
    finally:
        if begun is not None:
            _end(begun)


def _begun(what: str) -> Wait | None:
    """The wait that begins here; None where nothing is to be shown."""
    global _wait
    if _opener is None or threading.current_thread().daemon or not is_wanted():  # polytile's own threads are daemons
        return None
    with _lock:
        if _wait is not None and _wait._process == os.getpid():
            return None  # another thread's is shown
        _wait = Wait(what, _opener)
        return _wait


def _end(wait: Wait) -> None:
    global _wait
    with _lock:
        _wait = None
    wait.end()


def is_wanted() -> bool:
    """Whether waits are shown: the option `progress` is "auto", and stderr is a terminal that can erase a line."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
    return terminal and options.get("progress") == "auto" and os.environ.get("TERM") != "dumb"
