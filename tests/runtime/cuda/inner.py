"""An inner kernel (candidates/inner_kernel.py) that Python alone can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Inner:
    """Calls `run`; it has no dispatcher for C."""

    dispatch = None

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __call__(self, *args: object) -> None:
        self.run(*args)
