"""The table from ATen overloads to lowerings, filled by the files of this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

Lowering = Callable[..., Any]
TABLE: dict[Any, Lowering] = {}


def lowers(*overloads: Any) -> Callable[[Lowering], Lowering]:
    """Registers `fn(builder, *args, **kwargs)` for the given OpOverloads. Arguments arrive as Tensor values, sympy sizes, Python
    numbers, dtypes, lists of these, or None; the result is a Tensor, a size, None, or a tuple of these, shaped like the
    operator's."""

    def register(fn: Lowering) -> Lowering:
        for overload in overloads:
            TABLE[overload] = fn
        return fn

    return register


@functools.cache
def load() -> None:
    """Fills TABLE, once: imports every file of this folder. Whatever asks the table comes after it."""
    home = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(home.__path__):
        importlib.import_module(f"{home.__name__}.{module.name}")
