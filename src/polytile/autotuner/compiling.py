"""Configs of a Triton kernel are compiled side by side, by threads, as Triton's passes and ptxas leave the GIL to others.

Triton gives what is to be compiled to the mode that is active in the thread that launches (triton/runtime/_async_compile.py). Its
own mode waits at its end for all that was begun. This one does not: each config is waited for when it is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from triton.runtime import _async_compile

from polytile.runtime.pool import Pool

BYTES_EACH = 1 << 29
"""What a thread may need that compiles: ptxas takes the most of it."""


class _Work:
    """What is to be compiled, and its Future."""

    def __init__(self, compile: Callable[[], Any]) -> None:
        self.compile, self.future = compile, Future[Any]()

    def run(self) -> None:
        """Compiles it, unless that was cancelled; the Future has the kernel, or what was raised."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.compile())
        except BaseException as error:
            self.future.set_exception(error)


class _Threads(Pool[_Work]):
    def serve(self, work: Iterator[_Work]) -> None:
        for one in work:
            one.run()


class _SideBySide:
    """Takes the place of Triton's AsyncCompileMode."""

    def __init__(self) -> None:
        self.threads = _Threads("polytile autotune", BYTES_EACH)

    def submit(self, key: Any, compile: Callable[[], Any], finalize: Callable[[Any], None]) -> _async_compile.FutureKernel:
        """Has a thread compile it. The kernel is Triton's own once `result` of what is returned was called."""
        work = _Work(compile)
        self.threads.submit(work)
        return _async_compile.FutureKernel(finalize, work.future)


_mode: Any = _SideBySide()


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """Within the block, Triton's launches with `warmup=True` return at once, with a FutureKernel of what is not compiled yet."""
    token = _async_compile.active_mode.set(_mode)
    try:
        yield
    finally:
        _async_compile.active_mode.reset(token)
