"""Wrapper backends by name: from lines to a callable. Packages outside polytile register their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polytile.errors import OptionError
from polytile.wrapper.lines import Line


@dataclass(frozen=True)
class Wrapped:
    """What a backend makes of lines: `source` is its text; `call` takes the list of arguments, which it empties, and
    returns the list of results. `call` is handed to AOTAutograd as it is, so it carries `_boxed_call = True`."""

    source: str
    call: Callable[[list[Any]], list[Any]]


Backend = Callable[[str, tuple[Line, ...]], Wrapped]
_BACKENDS: dict[tuple[str, str], Backend] = {}


def register_backend(name: str, backend: Backend, device: str = "") -> None:
    """Makes a wrapper backend available to the option `wrapper`. A backend of the same name and device is replaced.

    Parameters
    ----------
    name
        The value of the option `wrapper` that asks for it.
    backend
        A function of a program's name and its lines (wrapper/lines.py) that returns what `wrapper.python.wrap` returns.
    device
        A type of device, "cpu" or "cuda", whose programs it writes. "" means those without a backend of their own by that name.

    Raises
    ------
    OptionError
        `backend` cannot be called.
    """
    if not callable(backend):
        raise OptionError(f"wrapper backend {name!r} has to be a function of a program's name and its lines; it is {backend!r}.")
    _BACKENDS[name, device] = backend


def backend(name: str, device: str = "") -> Backend:
    """The backend called `name` for a type of device; raises OptionError naming those there are."""
    found = _BACKENDS.get((name, device)) or _BACKENDS.get((name, ""))
    if found is None:
        known = ", ".join(sorted({known for known, _ in _BACKENDS}))
        raise OptionError(f"option 'wrapper': there is no wrapper backend {name!r}; there are: {known}.")
    return found
