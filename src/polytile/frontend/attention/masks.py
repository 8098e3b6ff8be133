"""Simplifies masks that a graph computes from positions: the expression is analysed, and the mask is dropped.

    ge(arange(m)[:, None], 0)                        →   no mask
    le(arange(n), arange(m)[:, None])                →   causal, from the top left
    le(arange(n), arange(m)[:, None] + (n - m))      →   causal, from the bottom right
    ge(arange(m)[:, None], 0) & padding[:, None]     →   padding

Models compute such masks, with a value for each pair of row and key, even if they mask nothing, or no more than a kernel's own
causal mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from polytile.frontend.attention.views import (
    CASTS,
    COPIES,
    EXPAND,
    UNSQUEEZE,
    is_one,
    is_whole_slice,
    shape,
    source,
    value,
)

aten = torch.ops.aten

CONJUNCTIONS = (aten.logical_and.default, aten.bitwise_and.Tensor)


@dataclass(frozen=True)
class Linear:
    """An integer tensor sum(steps[d] · index[d]) + start, with one index per dimension. Sizes may be symbolic."""

    steps: tuple[Any, ...]
    start: Any

    def plus(self, other: Linear, factor: int) -> Linear:
        """self + factor · other, with the dimensions of both aligned on the right."""
        rank = max(len(self.steps), len(other.steps))
        steps = zip(_aligned(self.steps, rank), _aligned(other.steps, rank), strict=True)
        return Linear(tuple(a + factor * b for a, b in steps), self.start + factor * other.start)


Conditions = tuple[Linear, ...]
"""A mask that is true where all of these are at least 0."""


@dataclass(frozen=True)
class Simplified:
    """A mask as a causal one ("" for none) and the remaining masks: a key is visible where all of them are true."""

    causal: str
    others: tuple[torch.fx.Node, ...] = ()


def simplified(mask: torch.fx.Node) -> Simplified | None:
    """Simplify a boolean mask (batch, heads, m, n) that is true where a key is visible; None if it cannot be simplified. The
    remaining masks have four dimensions too, some of size 1."""
    parts = _parts(mask)
    others = tuple(part for part in parts if _conditions(part) is None)
    sizes = shape(mask)
    conditions = [each for part in parts for each in _conditions(part) or ()]
    left = [condition for condition in conditions if not _is_always_true(condition, sizes)]
    if not left:
        return Simplified("", others) if len(others) < len(parts) else None
    causal = _causal(left, sizes)
    return Simplified(causal) if causal and not others else None


def _parts(mask: torch.fx.Node) -> list[torch.fx.Node]:
    """The four-dimensional masks whose conjunction is `mask`."""
    while _is_view(mask):
        if value(source(mask)).ndim != 4:
            return [mask]
        mask = source(mask)
    if mask.target not in CONJUNCTIONS or any(not _has_rank_4(each) for each in mask.args[:2]):
        return [mask]
    return [part for each in mask.args[:2] if isinstance(each, torch.fx.Node) for part in _parts(each)]


def _is_view(node: torch.fx.Node) -> bool:
    """Whether it has the elements of its first argument, possibly repeated."""
    return node.target in COPIES or node.target in (EXPAND, UNSQUEEZE) or is_whole_slice(node)


def _has_rank_4(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and value(node).ndim == 4 and value(node).dtype == torch.bool


def _causal(conditions: Sequence[Linear], sizes: Sequence[Any]) -> str | None:
    """The causal mask that the conditions describe; None if they do not."""
    if len(conditions) > 1:
        return None
    (condition,) = conditions
    *outer, rows, keys = _aligned(condition.steps, len(sizes))
    if any(outer) or (rows, keys) != (1, -1):
        return None
    if statically_known_true(condition.start == 0):
        return "top left"
    return "bottom right" if statically_known_true(condition.start == sizes[-1] - sizes[-2]) else None


def _is_always_true(condition: Linear, sizes: Sequence[Any]) -> bool:
    least = condition.start
    for step, size in zip(_aligned(condition.steps, len(sizes)), sizes, strict=True):
        least = least + min(step, 0) * (size - 1)
    return statically_known_true(least >= 0)


def _aligned(steps: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    return (0,) * (rank - len(steps)) + steps


def _conditions(node: Any) -> Conditions | None:
    """The conditions on positions that a boolean node stands for; None for any other."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return None
    if _is_view(node):
        inner = _conditions(source(node))
        return None if inner is None else tuple(_seen_through(node, each) for each in inner)
    if node.target in (aten.full.default, aten.new_ones.default, aten.ones.default):
        filled = node.args[1] is True if node.target == aten.full.default else value(node).dtype == torch.bool
        return () if filled else None
    if node.target in CONJUNCTIONS:
        left, right = (_conditions(each) for each in node.args[:2])
        return None if left is None or right is None else (*left, *right)
    compare = _COMPARISONS.get(node.target)
    if compare is None:
        return None
    one, other = (_linear(each) for each in node.args[:2])
    return None if one is None or other is None else (compare(one, other),)


def _linear(node: Any) -> Linear | None:
    """An integer node, or a number, as a linear function of positions."""
    if isinstance(node, bool | float):
        return None
    if isinstance(node, int):
        return Linear((), node)
    if not isinstance(node, torch.fx.Node):
        return None
    known = node.meta.get("val")
    if isinstance(known, int | torch.SymInt):
        return Linear((), known)
    if node.op != "call_function" or not isinstance(known, torch.Tensor) or known.dtype not in (torch.int32, torch.int64):
        return None
    if _is_view(node) or node.target in CASTS:
        inner = _linear(source(node))
        return None if inner is None else _seen_through(node, inner)
    if node.target in (aten.arange.start_step, aten.arange.start, aten.arange.default):
        start, step = (_linear(each) for each in _range(node))
        known_step = step is not None and isinstance(step.start, int)
        return Linear((step.start,), start.start) if start is not None and step is not None and known_step else None
    if node.target in (aten.add.Tensor, aten.sub.Tensor) and node.kwargs.get("alpha", 1) == 1:
        one, other = (_linear(each) for each in node.args[:2])
        return None if one is None or other is None else one.plus(other, 1 if node.target == aten.add.Tensor else -1)
    return None


def _range(node: torch.fx.Node) -> tuple[Any, Any]:
    """Start and step of an arange."""
    if node.target == aten.arange.default:
        return 0, 1
    return node.args[0], node.args[2] if len(node.args) > 2 else node.kwargs.get("step", 1)


def _seen_through(node: torch.fx.Node, inner: Linear) -> Linear:
    """`inner` with the dimensions of a view of it."""
    steps = list(inner.steps)
    if node.target == UNSQUEEZE:
        steps.insert(int(node.args[1]) % (len(steps) + 1), 0)  # type: ignore[arg-type]
    elif node.target == EXPAND:
        sizes = _aligned((*shape(source(node))[-len(steps) :],) if steps else (), len(steps))
        steps = [0 if is_one(size) else step for size, step in zip(sizes, steps, strict=True)]
        steps = list(_aligned(tuple(steps), len(shape(node))))
    return Linear(tuple(steps), inner.start)


def _at_least(one: Linear, other: Linear) -> Linear:
    return one.plus(other, -1)


def _above(one: Linear, other: Linear) -> Linear:
    return one.plus(other, -1).plus(Linear((), 1), -1)


_COMPARISONS: dict[Any, Callable[[Linear, Linear], Linear]] = {
    aten.ge.Tensor: _at_least,
    aten.ge.Scalar: _at_least,
    aten.gt.Tensor: _above,
    aten.gt.Scalar: _above,
    aten.le.Tensor: lambda one, other: _at_least(other, one),
    aten.le.Scalar: lambda one, other: _at_least(other, one),
    aten.lt.Tensor: lambda one, other: _above(other, one),
    aten.lt.Scalar: lambda one, other: _above(other, one),
}
