"""Which compiled programs are running: by the file names that their functions have, as generated functions leave no other trace.

The wrapper names them; a MultiKernel that decides asks on whose behalf it does.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_BEGINNING = "<polytile "
_numbers = itertools.count()
_behalf: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("polytile_on_behalf", default=frozenset())


def new_file(name: str) -> str:
    """A file name for the function of the program `name`, which no other has."""
    return f"{_BEGINNING}{name} {next(_numbers)}>"


def file_of(call: Callable[..., Any]) -> str:
    """The file name of a program's function; "" where it was not written in Python."""
    return str(getattr(getattr(call, "__code__", None), "co_filename", ""))


def running() -> frozenset[str]:
    """The file names of the programs that this thread is in, and of those on whose behalf it works."""
    found = set(_behalf.get())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_BEGINNING):
            found.add(frame.f_code.co_filename)
        frame = frame.f_back
    return frozenset(found)


@contextlib.contextmanager
def on_behalf(*files: str) -> Iterator[None]:
    """Within the block this thread works for the programs whose functions have these file names, apart from their calls."""
    token = _behalf.set(frozenset(files) - {""})
    try:
        yield
    finally:
        _behalf.reset(token)
