"""Wrapper backends by name: from lines to a callable. Packages outside polytile register their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from polytile.wrapper.lines import Line


class Wrapped(Protocol):
    """What a backend makes: called with the list of arguments (which it empties), returns the list of results; `source` is its
    text."""

    source: str

    def __call__(self, args: list[Any]) -> list[Any]: ...


Backend = Callable[[str, tuple[Line, ...]], Wrapped]
_BACKENDS: dict[str, Backend] = {}


def register_backend(name: str, backend: Backend) -> None:
    """Makes `backend(program_name, lines)` available under `name`; replaces one of the same name."""
    _BACKENDS[name] = backend


def backend(name: str) -> Backend:
    """The backend called `name`; raises KeyError naming those there are."""
    if name == "python" and name not in _BACKENDS:
        from polytile.wrapper.python import wrap

        register_backend("python", wrap)
    if name not in _BACKENDS:
        raise KeyError(f"there is no wrapper backend {name!r}; there are: {', '.join(sorted(_BACKENDS))}.")
    return _BACKENDS[name]
