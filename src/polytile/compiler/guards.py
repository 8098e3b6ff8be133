"""Which of Dynamo's guards a compiled function keeps: the argument `guards` of `polytile.compile`.

Dynamo compares every call with all that it read while it traced: arguments, globals, closures, modules with their attributes
and parameters, torch's modes. A model has thousands of such guards. torch lets a caller leave out guards that are known to
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo import source as sources

from polytile.errors import OptionError

KINDS = {
    "all": "every guard",
    "tensors": "guards on the arguments themselves and on torch's modes",
    "none": "no guard",
}
"""The values of `guards`, and what is kept."""

ROOTS = ("LocalSource", "LocalCellSource", "GlobalSource", "GlobalWeakRefSource", "ImportSource")
"""Kinds of variables and modules. A guard on something else is on torch's modes, or relates sizes."""

ITEMS = (
    "GetItemSource", "ListGetItemSource", "DictGetItemSource", "DictSubclassGetItemSource", "ConstDictKeySource",
    "TensorPropertySource", "ConvertIntSource", "FloatTensorSource", "NegateSource", "TupleIteratorGetItemSource",
)  # fmt: skip
"""Ways from an argument to what is in it that lead through no attribute."""


def checked(guards: str) -> str:
    """`guards`. Raises OptionError if it is none of KINDS."""
    if guards not in KINDS:
        known = ", ".join(f"{name!r} ({kept})" for name, kept in KINDS.items())
        raise OptionError(f"guards={guards!r} of polytile.compile is not one that it takes. Take one of {known}.")
    return guards


def filter_of(guards: str) -> Callable[[Sequence[Any]], list[bool]] | None:
    """torch's `guard_filter_fn` for a value of `guards`; None keeps all."""
    return {"all": None, "tensors": _on_arguments_and_modes, "none": _none}[guards]


def _none(entries: Sequence[Any]) -> list[bool]:
    return [False] * len(entries)


def _on_arguments_and_modes(entries: Sequence[Any]) -> list[bool]:
    return [_is_kept(entry.orig_guard.originating_source) for entry in entries]


def _is_kept(source: Any) -> bool:
    """Whether a guard is on an argument or an item in one, or on none of the function's variables."""
    root, direct = source, True
    while isinstance(root, sources.ChainedSource):
        direct = direct and type(root).__name__ in ITEMS
        root = root.base
    if type(root).__name__ not in ROOTS:
        return True
    return direct and isinstance(root, sources.LocalSource) and root.is_input and not root.is_derefed_cell_contents
