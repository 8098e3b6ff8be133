"""Matrix products: templates over stored operands, views of any strides; what is added to a product is a loop that
reads it.

The loop becomes the template's epilogue when the passes fuse them. Products of other types than `OPERAND_DTYPES` are
the library's.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, broadcast_point, computed, convert, stored, widen
from polytile.frontend.lower.views import has_static_zero, is_dense, traced_argument, traced_strides
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.ir.program import Template, View, whole
from polytile.ir.sizes import ONE, ZERO, Size

aten = torch.ops.aten

OPERAND_DTYPES = {"cpu": (torch.float32, torch.float64, torch.bfloat16)}
Number: TypeAlias = "bool | int | float | Size"


def product(builder: Builder, a: Tensor, b: Tensor, first: int) -> Tensor:
    """out[..., m, n] = Σ_k a[..., m, k]·b[..., k, n] for operands of rank 2 or 3, stored; zero where there is nothing to
    add up. `first`: the number of `a` among the current node's arguments."""
    for operand in (a, b):
        if operand.dtype not in OPERAND_DTYPES.get(operand.device.type, ()):
            raise LoweringError(
                f"matrix products of type {operand.dtype} on {operand.device.type} are left to the library."
            )
    if a.dtype != b.dtype:
        raise LoweringError(f"a product of {a.dtype} and {b.dtype} is left to the library.")
    shape = (*a.sizes[:-1], b.sizes[-1])
    if has_static_zero(a.sizes) or has_static_zero(b.sizes):
        return computed(shape, a.dtype, a.device, lambda point: expr.const(0, a.compute_dtype))
    operands = [operand_of(builder, operand, k) for k, operand in enumerate((a, b), first)]
    out = builder.new_buffer(shape, a.dtype, a.device)
    views = [batched(operand) for operand in operands]
    builder.emit(Template(builder.name("mm"), "mm", views[0], views[1], batched(whole(out)), None, (builder.origin,)))
    return stored(whole(out), a.device)


def operand_of(builder: Builder, operand: Tensor, k: int) -> View:
    """`operand`, argument `k` of the current node, stored; a computed one in the order of memory that eager would give
    it, so that the transpose of a computed matrix is written row by row and read as a transpose."""
    traced = traced_argument(builder, k)
    strides = traced_strides(traced) if traced is not None else ()
    laid_out = operand.view is None and len(strides) == operand.rank and is_dense(operand.sizes, strides)
    view = builder.realize(operand, strides if laid_out else None).view
    assert view is not None
    return view


def batched(view: View) -> View:
    """A matrix as a batch of one."""
    if len(view.sizes) == 3:
        return view
    return View(view.buffer, view.dtype, (ONE, *view.sizes), (ZERO, *view.strides), view.offset)


def plus(builder: Builder, bias: Tensor, result: Tensor, beta: Number, alpha: Number) -> Tensor:
    """beta·bias + alpha·result at the current node's sizes; a bias times 0 is not read, so its NaNs do not matter."""
    shape = builder.result_sizes()

    def scaled(node: Node, factor: Number) -> Node:
        if factor == 1:
            return node
        return expr.op("mul", node.dtype, node, widen(builder.element(factor, (), ()), result.dtype))

    def at(point: Point) -> Node:
        value = scaled(result.at(point), alpha)
        if beta != 0:
            added = widen(bias.at(broadcast_point(bias.sizes, shape, point)), result.dtype)
            value = expr.op("add", value.dtype, scaled(added, beta), value)
        return convert(value, result.dtype)

    return computed(shape, result.dtype, result.device, at)


@lowers(aten.mm.default, aten.bmm.default)
def mm(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    return product(builder, a, b, first=0)


@lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(builder: Builder, bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    return plus(builder, bias, product(builder, a, b, first=1), beta, alpha)
