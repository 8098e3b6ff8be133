"""The table from ATen overloads to lowerings, filled by the files of this folder."""

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
"""Lowerings of other packages' operators by name, which exist once the package is imported."""


def lowers(*overloads: Any) -> Callable[[Lowering], Lowering]:
    """Registers `fn(builder, *args, **kwargs)` for the given OpOverloads. Arguments arrive as Tensor values, sympy sizes, Python
    numbers, dtypes, lists of these, or None; the result is a Tensor, a size, None, or a tuple of these, shaped like the
    operator's."""

    def register(fn: Lowering) -> Lowering:
        for overload in overloads:
            TABLE[overload] = fn
        return fn

    return register


def lowers_later(name: str) -> Callable[[Lowering], Lowering]:
    """The same for the operator of this name ("package::operator") of another package."""

    def register(fn: Lowering) -> Lowering:
        LATER[name] = fn
        return fn

    return register


def adopt(targets: Iterable[Any]) -> None:
    """Moves the lowerings of those of `targets` to TABLE that are operators of other packages."""
    for target in targets:
        if isinstance(target, OpOverload) and target not in TABLE and target.name() in LATER:
            TABLE[target] = LATER[target.name()]


@functools.cache
def load() -> None:
    """Fills TABLE, once: imports every file of this folder. Whatever asks the table comes after it."""
    home = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(home.__path__):
        importlib.import_module(f"{home.__name__}.{module.name}")
