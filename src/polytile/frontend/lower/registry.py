"""The table from ATen overloads to lowerings. The modules of this package fill it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

from torch._ops import OpOverload

Lowering = Callable[..., Any]
TABLE: dict[Any, Lowering] = {}
LATER: dict[str, Lowering] = {}
"""Lowerings of third-party operators by name. The operators exist once their package is imported."""


def lowers(*overloads: Any) -> Callable[[Lowering], Lowering]:
    """Register `fn(builder, *args, **kwargs)` as the lowering of the given OpOverloads.

    Arguments arrive as Tensor values, sympy sizes, Python numbers, dtypes, lists of these, or None. The result is a Tensor, a
    size, None, or a tuple of these, with the structure of the operator's result.
    """

    def register(fn: Lowering) -> Lowering:
        for overload in overloads:
            TABLE[overload] = fn
        return fn

    return register


def lowers_later(name: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for a third-party operator by name ("package::operator")."""

    def register(fn: Lowering) -> Lowering:
        LATER[name] = fn
        return fn

    return register


def adopt(targets: Iterable[Any]) -> None:
    """Add the lowerings of those third-party operators among `targets` to TABLE."""
    for target in targets:
        if isinstance(target, OpOverload) and target not in TABLE and target.name() in LATER:
            TABLE[target] = LATER[target.name()]


@functools.cache
def load() -> None:
    """Import every module of this package once, which fills TABLE. Call it before reading the table."""
    home = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(home.__path__):
        importlib.import_module(f"{home.__name__}.{module.name}")
