"""The value of a tensor while a graph is lowered: a strided view of a buffer, or an expression that is not stored yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from polytile.errors import LoweringError
from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.dtypes import ROUNDING, compute_dtype
from polytile.ir.expr import Node

Point = tuple[sympy.Expr, ...]

LOOP_DTYPES = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.bfloat16, torch.float16, torch.float32, torch.float64,
    }
)  # fmt: skip
"""Element types that generated loops can load, compute with and store."""


@dataclass(frozen=True)
class Call:
    """One ATen operator applied to stored tensors, with arguments as in ir.library_call.LibraryCall.

    Its result has `sizes`; the tensor that holds the Call may be a row-major reshape of that result.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    sizes: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor of symbolic `sizes` and logical `dtype`, either stored or not.

    A stored tensor has a `view`, a strided view of a buffer. An unstored one has a `node` over `axes`, one symbol per dimension,
    that is computed where it is used. Nodes have compute dtypes: float32 for 8- and 16-bit floats.

    Attributes
    ----------
    layout
        Strides (in elements) in which an unstored tensor is stored unless others are asked for; None means row-major.
    call
        The ATen operator that computes an unstored tensor, if all its arguments are stored.
    """

    sizes: tuple[sympy.Expr, ...]
    dtype: torch.dtype
    device: torch.device
    view: View | None = None
    axes: tuple[sympy.Symbol, ...] = ()
    node: Node | None = None
    layout: tuple[sympy.Expr, ...] | None = field(default=None, compare=False)
    call: Call | None = field(default=None, compare=False)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def numel(self) -> sympy.Expr:
        return sizes.product(self.sizes)

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.dtype)

    def at(self, point: Sequence[sympy.Expr]) -> Node:
        """The element at `point` (one index expression per dimension), in the compute dtype."""
        point = tuple(point)
        if self.view is not None:
            return expr.load(self.compute_dtype, self.view.buffer, self.view.index(point))
        assert self.node is not None
        return expr.substitute((self.node,), dict(zip(self.axes, point, strict=True)))[0]


def fresh_axes(sizes_: Sequence[sympy.Expr]) -> tuple[sympy.Symbol, ...]:
    """The standard axis symbols d0, d1, … of an unstored tensor."""
    return tuple(sizes.axis(f"d{i}") for i in range(len(sizes_)))


def computed(
    sizes_: Sequence[sympy.Expr], dtype: torch.dtype, device: torch.device, element: Callable[[Point], Node]
) -> Tensor:
    """An unstored tensor whose element at `point` is `element(point)`, in the compute dtype of `dtype`."""
    axes = fresh_axes(sizes_)
    return Tensor(tuple(sizes_), dtype, device, axes=axes, node=element(axes))


def stored(view: View, device: torch.device) -> Tensor:
    return Tensor(view.sizes, view.dtype, device, view=view)


def convert(node: Node, dtype: torch.dtype) -> Node:
    """Convert `node` to the logical `dtype`: cast to its compute dtype, and round if `dtype` is an 8- or 16-bit float."""
    target = compute_dtype(dtype)
    if isinstance(node, expr.Const):
        if not (target != torch.bool and not target.is_floating_point and isinstance(node.value, float)):
            node = expr.const(node.value, target)
    if node.dtype != target:
        node = expr.op("cast", target, node)
    return expr.op(ROUNDING[dtype], target, node) if dtype in ROUNDING else node


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` as an unstored tensor of another dtype."""
    return computed(tensor.sizes, dtype, tensor.device, lambda point: convert(tensor.at(point), dtype))


def widen(node: Node, dtype: torch.dtype) -> Node:
    """Cast `node` to the compute dtype of `dtype` without rounding to `dtype`, for arithmetic between stored values."""
    target = compute_dtype(dtype)
    if node.dtype == target:
        return node
    if isinstance(node, expr.Const):
        return expr.const(node.value, target)
    return expr.op("cast", target, node)


def check_broadcast(source: Sequence[sympy.Expr], target: Sequence[sympy.Expr]) -> None:
    """Raise LoweringError unless each of the sizes `source` is a number or known to be that of `target`.

    It is for operators that do not guard on it while they are traced, as `addmm` and `index_put`: they may be called with a size
    that is 1 in one call and the target's in another. The others' sizes fit by guards that only torch knows of: the two halves of
    an even number s are s // 2 and s - s // 2.
    """
    for size, wide in zip(reversed(source), reversed(target), strict=False):
        if size.is_Integer or sizes.equal(size, wide):
            continue
        raise LoweringError(f"tracing left open whether an operand of size {size} is broadcast, which only a call knows")


def broadcast_point(source: Sequence[sympy.Expr], target: Sequence[sympy.Expr], point: Point) -> Point:
    """The index into a tensor of sizes `source` that is read at `point` when it is broadcast to sizes `target`."""
    lead = len(target) - len(source)
    return tuple(sizes.ZERO if n == 1 and target[lead + i] != 1 else point[lead + i] for i, n in enumerate(source))
