"""How tests wait: until something has happened, however busy the machine is, and never for some time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds after which what a test waits for will not come any more."""


def until(happened: Callable[[], object], what: str) -> None:
    """Returns when `happened()` is true; fails, naming `what`, where it is not within PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, f"still not so after {PATIENCE:.0f} s: {what}"
        time.sleep(0.001)
