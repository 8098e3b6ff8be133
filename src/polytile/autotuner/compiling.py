"""Compiles the configs of a Triton kernel in parallel threads; Triton's passes and ptxas release the GIL.

Triton passes compilations to the mode that is active in the launching thread (triton/runtime/_async_compile.py). Its own mode
waits at the end for all of them. This one does not: each config is waited for when it is measured.
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
"""Estimated memory of a compiling thread, mostly for ptxas."""


class Work(Future[Any]):
    """A kernel that is compiled by a thread, or by whoever needs it before a thread has started. Triton's cache keeps it, so any
    later launch may ask for it."""

    def __init__(self, compile: Callable[[], Any]) -> None:
        super().__init__()
        self._compile, self._unbegun, self._withdrawn = compile, threading.Lock(), False

    def withdraw(self) -> None:
        """Keep threads from starting it."""
        self._withdrawn = True

    def run(self) -> None:
        if not self._withdrawn:
            self._make()

    def result(self, timeout: float | None = None) -> Any:
        """The kernel. Raises what its compilation raised, and TimeoutError if a thread takes longer than `timeout` seconds."""
        self._make()
        return super().result(timeout)

    def _make(self) -> None:
        if self._unbegun.acquire(blocking=False):
            try:
                self.set_result(self._compile())
            except BaseException as error:
                self.set_exception(error)


class _SideBySide:
    """A replacement for Triton's AsyncCompileMode."""

    def __init__(self) -> None:
        self.threads = Pool("polytile autotune", BYTES_EACH)

    def submit(self, key: Any, compile: Callable[[], Any], *after: Callable[[Any], None]) -> _async_compile.FutureKernel:
        """Compile in a thread. Calling `result` of the returned object registers the kernel with Triton through `after`: one
        function in Triton 3.6, one per outcome in 3.9."""
        work = Work(compile)
        self.threads.submit(work.run)
        return _async_compile.FutureKernel(*after, work)


_mode: Any = _SideBySide()


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """Within the block, launches with `warmup=True` return immediately, with a FutureKernel if compilation is needed."""
    token = _async_compile.active_mode.set(_mode)
    try:
        yield
    finally:
        _async_compile.active_mode.reset(token)
