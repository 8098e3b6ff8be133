"""Timing of launches by the user's `do_bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources


class UserTimer:
    """Times launches with a function like `triton.testing.do_bench`, which returns milliseconds, once per race."""

    def __init__(self, bench: Callable[..., Any]) -> None:
        self.bench = bench
        self._known: tuple[Any, float] | None = None

    def __call__(self, entry: Any, args: Any, repeats: int) -> float:
        """The time of `repeats` launches in seconds; infinite if the GPU lacks the resources for the kernel."""
        if self._known is None or self._known[0] is not args:
            try:
                times = self.bench(lambda: entry.call(*args), quantiles=(0.5, 0.2, 0.8))
            except (OutOfResources, CompileTimeAssertionFailure):
                times = float("inf")
            self._known = args, 1e-3 * float(times[0] if isinstance(times, Sequence) else times)
        return self._known[1] * repeats

    def release(self) -> None:
        """Forget the arguments when the race is over."""
        self._known = None
