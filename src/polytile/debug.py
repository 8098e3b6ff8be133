"""What the option `debug` shows, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

from polytile import options


def show(level: int, text: Callable[[], str]) -> None:
    """Prints `text()` where the option `debug` is at `level` or above."""
    if options.get("debug") >= level:
        print(text(), file=sys.stderr)
