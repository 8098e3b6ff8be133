"""Wrapper backends by name: each turns lines into a callable. Packages outside polytile can register their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polytile.errors import OptionError
from polytile.wrapper.lines import Line


@dataclass(frozen=True)
class Wrapped:
    """A backend's result.

    Attributes
    ----------
    source : str
        The program's text.
    call : callable
        Takes the list of arguments, which it empties, and returns the list of results. AOTAutograd receives it as it
        is, so it carries `_boxed_call = True`.
    names : mapping, optional
        The objects that the text refers to, for a backend with a Load. None if only this process can run the program.
    """

    source: str
    call: Callable[[list[Any]], list[Any]]
    names: Mapping[str, Any] | None = None


Backend = Callable[[str, tuple[Line, ...]], Wrapped]
Load = Callable[[str, str, Mapping[str, Any]], Wrapped]
"""Restores a Wrapped from a program's name, a source that the backend wrote in another process, and the objects that
the source refers to."""

_BACKENDS: dict[tuple[str, str], Backend] = {}
_LOADS: dict[Backend, Load] = {}


def register_backend(name: str, backend: Backend, device: str = "", load: Load | None = None) -> None:
    """Makes a wrapper backend available to the option `wrapper`. Replaces a backend of the same name and device.

    Parameters
    ----------
    name : str
        Value of the option `wrapper` that selects it.
    backend : callable
        Takes a program's name and its lines (wrapper/lines.py), and returns a Wrapped, as `wrapper.python.wrap` does.
    device : str
        Device type, "cpu" or "cuda", of the programs it writes. "" means all devices for which this name has no other
        backend.
    load : callable, optional
        Loads what the backend wrote in an earlier process. Without it, each process lowers its programs again.

    Raises
    ------
    OptionError
        If `backend` is not callable.
    """
    if not callable(backend):
        raise OptionError(f"wrapper backend {name!r} has to be a function of a program's name and its lines; it is {backend!r}.")
    _BACKENDS[name, device] = backend
    if load is not None:
        _LOADS[backend] = load


def backend(name: str, device: str = "") -> Backend:
    """The backend called `name` for a device type. Raises OptionError, with the available names, if there is none."""
    writer = _BACKENDS.get((name, device)) or _BACKENDS.get((name, ""))
    if writer is None:
        known = ", ".join(sorted({known for known, _ in _BACKENDS}))
        raise OptionError(f"option 'wrapper': there is no wrapper backend {name!r}; there are: {known}.")
    return writer


def load_of(backend: Backend) -> Load | None:
    """The function that loads the backend's sources; None if there is none."""
    return _LOADS.get(backend)
