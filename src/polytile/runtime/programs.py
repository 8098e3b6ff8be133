"""Identifies the compiled programs that are running by the file names of their generated functions, which leave no
other trace.

The wrapper assigns the names. A MultiKernel that makes a decision asks which programs it decides for.
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
    """A unique file name for the function of the program `name`."""
    return f"{_BEGINNING}{name} {next(_numbers)}>"


def file_of(call: Callable[..., Any]) -> str:
    """File name of a program's function; "" if the function is not written in Python."""
    return str(getattr(getattr(call, "__code__", None), "co_filename", ""))


def running() -> frozenset[str]:
    """File names of the programs on this thread's call stack, and of those it works on behalf of."""
    files = set(_behalf.get())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_BEGINNING):
            files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return frozenset(files)


@contextlib.contextmanager
def on_behalf(*files: str) -> Iterator[None]:
    """Makes this thread work on behalf of the programs with these file names within the block, outside their calls."""
    token = _behalf.set(frozenset(files) - {""})
    try:
        yield
    finally:
        _behalf.reset(token)
