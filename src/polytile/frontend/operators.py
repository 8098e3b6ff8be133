"""ATen operators of the graph as calls on stored tensors. A loop that was lowered from one operator alone may be replaced by
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.creation import UNINITIALISED
from polytile.frontend.lower.random import is_drawn
from polytile.frontend.lower.value import Call, Tensor
from polytile.frontend.placement import is_view
from polytile.ir import sizes
from polytile.ir.buffer import View
from polytile.ir.library_call import Ref
from polytile.ir.program import Operation

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def is_reshape(target: object) -> bool:
    """Whether an operator only changes the sizes and keeps the row-major order of the elements."""
    return target in _RESHAPES


def operator_call(builder: Builder, node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """The operator of `node` as a Call; None if an argument is not stored, or the result is a view, random or a single number."""
    target, fake = node.target, node.meta.get("val")
    if not isinstance(target, OpOverload) or target._schema.is_mutable or is_view(target):
        return None
    if is_drawn(target) or target in UNINITIALISED or not _stored((args, kwargs)):
        return None
    shape = tuple(sizes.as_size(n) for n in fake.shape) if isinstance(fake, torch.Tensor) else ()
    return Call(target, *_arguments(builder, args, kwargs), shape) if shape or not isinstance(fake, torch.Tensor) else None


def changing_call(builder: Builder, target: object, base: View, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """The in-place form of `target`, applied to its first argument, which is in `base` already; None if there is no such form."""
    if not isinstance(target, OpOverload) or not _stored((args[1:], kwargs)):
        return None
    name = target._schema.name.removeprefix("aten::")
    changing = getattr(getattr(aten, f"{name}_", None), target._overloadname, None)
    if changing is None:
        return None
    given, named = _arguments(builder, args[1:], kwargs)
    return Call(changing, (Ref(base), *given), named, ())


def changes_a_copy(made: Sequence[Operation], base: View) -> bool:
    """Whether these are two operations on `base`: one that fills it and one that updates it."""
    return len(made) == 2 and all(operation.writes() == {base.buffer} for operation in made)


def _stored(values: Any) -> bool:
    return all(value.view is not None for value in tree_leaves(values) if isinstance(value, Tensor))


def _arguments(
    builder: Builder, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    return tuple(map(builder.argument, args)), tuple((name, builder.argument(value)) for name, value in kwargs.items())
