"""Configs of a Triton kernel are compiled side by side, by threads, as Triton's passes and ptxas leave the GIL to others.

Triton gives what is to be compiled to the mode that is active in the thread that launches (triton/runtime/_async_compile.py). Its
own mode waits at its end for all that was begun. This one does not: each config is waited for when it is measured.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from triton.runtime import _async_compile

from polytile.runtime.pool import Pool

BYTES_EACH = 1 << 29
"""What a thread may need that compiles: ptxas takes the most of it."""


class Work(Future[Any]):
    """A kernel that a thread compiles, or whoever asks for it before a thread has begun. Triton's cache keeps it, so it may be
    asked for at any later launch."""

    def __init__(self, compile: Callable[[], Any]) -> None:
        super().__init__()
        self._compile, self._unbegun, self._withdrawn = compile, threading.Lock(), False

    def withdraw(self) -> None:
        """Has no thread begin with it any more."""
        self._withdrawn = True

    def run(self) -> None:
        if not self._withdrawn:
            self._make()

    def result(self, timeout: float | None = None) -> Any:
        """The kernel. Raises what compiling it raised, and TimeoutError where a thread takes longer than `timeout` seconds."""
        self._make()
        return super().result(timeout)

    def _make(self) -> None:
        if self._unbegun.acquire(blocking=False):
            try:
                self.set_result(self._compile())
            except BaseException as error:
                self.set_exception(error)


class _Threads(Pool[Work]):
    def serve(self, work: Iterator[Work]) -> None:
        for one in work:
            one.run()


class _SideBySide:
    """Takes the place of Triton's AsyncCompileMode."""

    def __init__(self) -> None:
        self.threads = _Threads("polytile autotune", BYTES_EACH)

    def submit(self, key: Any, compile: Callable[[], Any], *after: Callable[[Any], None]) -> _async_compile.FutureKernel:
        """Has a thread compile it. The kernel is Triton's own once `result` of what is returned was called, which calls `after`:
        one function in Triton 3.6, one for each outcome in 3.9."""
        work = Work(compile)
        self.threads.submit(work)
        return _async_compile.FutureKernel(*after, work)


_mode: Any = _SideBySide()


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """Within the block, Triton's launches with `warmup=True` return at once, with a FutureKernel of what is not compiled yet."""
    token = _async_compile.active_mode.set(_mode)
    try:
        yield
    finally:
        _async_compile.active_mode.reset(token)
