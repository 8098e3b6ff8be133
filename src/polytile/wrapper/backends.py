"""Wrapper backends by name: from lines to a callable. Packages outside polytile register their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polytile.errors import OptionError
from polytile.wrapper.lines import Line


@dataclass(frozen=True)
class Wrapped:
    """What a backend makes of lines: `source` is its text; `call` takes the list of arguments, which it empties, and
    returns the list of results. `call` is handed to AOTAutograd as it is, so it carries `_boxed_call = True`. `names` are the
    objects that the text refers to, for a backend with a Load; None: only this process can run it."""

    source: str
    call: Callable[[list[Any]], list[Any]]
    names: Mapping[str, Any] | None = None


Backend = Callable[[str, tuple[Line, ...]], Wrapped]
Load = Callable[[str, str, Mapping[str, Any]], Wrapped]
"""Makes of a program's name, a source that the backend wrote in another process, and the objects that it refers to, what the
backend would."""

_BACKENDS: dict[tuple[str, str], Backend] = {}
_LOADS: dict[Backend, Load] = {}


def register_backend(name: str, backend: Backend, device: str = "", load: Load | None = None) -> None:
    """Makes a wrapper backend available to the option `wrapper`. A backend of the same name and device is replaced.

    Parameters
    ----------
    name
        The value of the option `wrapper` that asks for it.
    backend
        A function of a program's name and its lines (wrapper/lines.py) that returns what `wrapper.python.wrap` returns.
    device
        A type of device, "cpu" or "cuda", whose programs it writes. "" means those without a backend of their own by that name.
    load
        Loads what the backend has written in an earlier process; without it, each process lowers its programs anew.

    Raises
    ------
    OptionError
        `backend` cannot be called.
    """
    if not callable(backend):
        raise OptionError(f"wrapper backend {name!r} has to be a function of a program's name and its lines; it is {backend!r}.")
    _BACKENDS[name, device] = backend
    if load is not None:
        _LOADS[backend] = load


def backend(name: str, device: str = "") -> Backend:
    """The backend called `name` for a type of device; raises OptionError naming those there are."""
    writer = _BACKENDS.get((name, device)) or _BACKENDS.get((name, ""))
    if writer is None:
        known = ", ".join(sorted({known for known, _ in _BACKENDS}))
        raise OptionError(f"option 'wrapper': there is no wrapper backend {name!r}; there are: {known}.")
    return writer


def load_of(backend: Backend) -> Load | None:
    """What loads the sources that a backend has written; None where nothing does."""
    return _LOADS.get(backend)
