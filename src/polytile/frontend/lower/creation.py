"""Lowerings of operators that create tensors: constants, ranges, identity, uninitialised memory, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import is_dense, traced_strides
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise import check_dtypes, converted, operand, wrapped
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, widen
from polytile.ir import expr, sizes
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node

Number = Any  # Python number or sympy expression


def filled_tensor(builder: Builder, element: Callable[[Point], Node]) -> Tensor:
    """A tensor of the traced sizes and dtype with elements `element(point)`, converted to that dtype. Raises LoweringError if a
    loop cannot fill the traced result."""
    result = builder.result()
    check_dtypes(result.dtype)
    if result.layout != torch.strided:
        raise LoweringError(f"generated loops fill only strided memory, not {result.layout}.")
    if builder.node is not None and builder.node.kwargs.get("pin_memory"):
        raise LoweringError("generated loops do not allocate pinned memory.")
    return computed(builder.result_sizes(), result.dtype, result.device, lambda p: widen(element(p), result.dtype))


# constants ------------------------------------------------------------------------------------------------------------


def constant(builder: Builder, value: Number | Tensor) -> Tensor:
    """`value` everywhere."""
    if isinstance(value, complex):
        raise LoweringError("generated loops do not compute with complex numbers.")
    check_dtypes(builder.result().dtype)
    value = wrapped(operand(value, builder.result().device), builder.result().dtype)
    return filled_tensor(builder, lambda point: builder.element(value, (), ()))


@lowers(*overloads("full"))
def full(builder: Builder, size: Sequence[Number], value: Number, **options: Any) -> Tensor:
    return constant(builder, value)


@lowers(*overloads("full_like new_full fill.Scalar fill.Tensor prims.fill"))
def full_like(builder: Builder, like: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """The last positional argument is the value, a number or a zero-dimensional tensor."""
    value = arguments[-1] if arguments else options["fill_value"]
    if isinstance(value, Tensor) and value.rank:
        raise LoweringError("the value to fill with has dimensions.")
    return constant(builder, value)


@lowers(*overloads("scalar_tensor"))
def scalar_tensor(builder: Builder, value: Number, **options: Any) -> Tensor:
    return constant(builder, value)


@lowers(*overloads("zeros zeros_like new_zeros _efficientzerotensor"))
def zeros(builder: Builder, *arguments: Any, **options: Any) -> Tensor:
    return constant(builder, 0)


@lowers(*overloads("ones ones_like new_ones"))
def ones(builder: Builder, *arguments: Any, **options: Any) -> Tensor:
    return constant(builder, 1)


UNINITIALISED = (
    *overloads("empty.memory_format empty_like empty_strided empty_permuted new_empty new_empty_strided"),
    *overloads("prims.empty_strided prims.empty_permuted"),
)
"""Operators whose results hold whatever is in memory. polytile's loops fill them with zeros, which a call of one does not."""


@lowers(*UNINITIALISED)
def empty(builder: Builder, *arguments: Any, **options: Any) -> Tensor:
    """Any value will do: zero needs no memory if it is used at once."""
    result = builder.result()
    if not is_dense(builder.result_sizes(), traced_strides(result)):
        raise LoweringError("memory whose elements overlap or leave holes is allocated by the library.")
    return constant(builder, 0)


# ranges ---------------------------------------------------------------------------------------------------------------


@lowers(*overloads("arange.start_step"))
def arange(builder: Builder, start: Number, end: Number, step: Number = 1, **options: Any) -> Tensor:
    return filled_tensor(builder, lambda point: ranged(builder, start, step, point[0]))


@lowers(*overloads("prims.iota"))
def iota(builder: Builder, length: Number, *, start: Number, step: Number, **options: Any) -> Tensor:
    return filled_tensor(builder, lambda point: ranged(builder, start, step, point[0]))


def ranged(builder: Builder, start: Number, step: Number, index: sympy.Expr) -> Node:
    """start + step·index: exact for integers, else in float64 (float32 on devices where eager uses that)."""
    result = builder.result()
    if not result.dtype.is_floating_point:  # eager converts the bounds of integer ranges to integers
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if _is_integer(start) and _is_integer(step):
        start, step = sizes.as_size(start), sizes.as_size(step)
        return expr.index_value(start + step * index)
    dtype = torch.float64 if result.device.type == "cpu" else compute_dtype(result.dtype)
    first, by = (_number_node(builder, v, dtype) for v in (start, step))
    return expr.op("add", dtype, first, expr.op("mul", dtype, by, widen(expr.index_value(index), dtype)))


def _is_integer(value: Number) -> bool:
    return isinstance(value, int) or (isinstance(value, sympy.Expr) and bool(value.is_integer))


def _number_node(builder: Builder, value: Number, dtype: torch.dtype) -> Node:
    return widen(builder.element(operand(value, builder.result().device), (), ()), dtype)


@lowers(*overloads("eye eye.m"))
def eye(builder: Builder, *arguments: Any, **options: Any) -> Tensor:
    return filled_tensor(builder, lambda point: expr.op("eq", torch.bool, *[expr.index_value(i) for i in point]))


# copies ---------------------------------------------------------------------------------------------------------------


@lowers(*overloads("clone detach_copy lift_fresh_copy lift_fresh lift prims.clone"))
def clone(builder: Builder, x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    """A copy. One that requests a memory format other than row-major is stored in that layout at once."""
    copied = converted(builder, x, x.dtype)
    result = builder.result()
    strides = tuple(sizes.as_size(n) for n in result.stride())
    if memory_format in (None, torch.preserve_format) or strides == sizes.contiguous_strides(copied.sizes):
        return copied
    return builder.realize(copied, strides)
