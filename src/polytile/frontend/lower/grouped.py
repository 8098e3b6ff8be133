"""Grouped products: products of groups of rows, or of groups along k, whose sizes are known only on the device.

A product with groups of columns is the transpose of one with groups of rows. Experts with the same number of rows are a batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.matmul import OPERAND_DTYPES, batched, check_scaled, generator_of, operand_of, product
from polytile.frontend.lower.positions import Place, position, ranges_of
from polytile.frontend.lower.reductions import accumulated, reduce_over
from polytile.frontend.lower.registry import lowers, lowers_later
from polytile.frontend.lower.value import Point, Tensor, computed, convert, stored, widen
from polytile.frontend.lower.views import has_static_zero
from polytile.ir import expr, sizes
from polytile.ir.buffer import View, whole
from polytile.ir.expr import Node
from polytile.ir.sizes import ZERO, Size
from polytile.ir.template import Grouping, Template

aten = torch.ops.aten

FALLBACK = "transformers::grouped_mm_fallback"
"""The operator with which transformers' experts multiply where `torch.nn.functional.grouped_mm` is not compiled: dtypes other
than bfloat16."""


@lowers(aten._grouped_mm.default)
def grouped_mm(
    builder: Builder, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """The four forms: both operands of three dimensions, one of them, or none."""
    if bias is not None or (out_dtype is not None and out_dtype != a.dtype):
        raise LoweringError("grouped products with a bias, or in another type than their operands', are left to the library.")
    if offs is None:
        return product(builder, a, b, first=0)
    _check(a, b)
    left, right = operand_of(builder, a, 0), operand_of(builder, b, 1)
    return emit(builder, left, right, _ends(builder, offs), builder.result())


@lowers_later(FALLBACK)
def fallback(builder: Builder, a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """Rows of `a` in groups by matrices of `b`; rows beyond the last group are 0."""
    return grouped_mm(builder, a, b, offs)


@lowers_later(f"{FALLBACK}_backward")
def fallback_backward(builder: Builder, a: Tensor, b: Tensor, offs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `a` and of `b`."""
    _check(a, b)
    _check(grad, b)
    left, right, change = (operand_of(builder, tensor, k) for tensor, k in ((a, 0), (b, 1), (grad, 3)))
    ends = _ends(builder, offs)
    by_rows = emit(builder, change, _turned(right), ends, builder.result(0))
    return by_rows, emit(builder, _turned(left), change, ends, builder.result(1))


def _check(a: Tensor, b: Tensor) -> None:
    """Raise LoweringError if no grouped product is generated."""
    if a.dtype != b.dtype or a.dtype not in OPERAND_DTYPES.get(generator_of(a.device), ()):
        raise LoweringError(f"grouped products of {a.dtype} and {b.dtype} on {a.device.type} are left to the library.")
    if has_static_zero(a.sizes) or has_static_zero(b.sizes):
        raise LoweringError("grouped products of nothing are left to the library.")


def _ends(builder: Builder, offs: Tensor) -> View:
    """The ends of the groups, as a dense int32 vector."""
    if offs.dtype not in (torch.int32, torch.int64):
        raise LoweringError(f"groups that end at numbers of {offs.dtype} are left to the library.")
    if offs.dtype == torch.int64:
        wide = offs
        offs = computed(wide.sizes, torch.int32, wide.device, lambda point: convert(wide.at(point), torch.int32))
    return builder.stored(builder.contiguous(offs))


def _turned(view: View) -> View:
    """The transposed matrix or matrices."""
    order = (*range(len(view.sizes) - 2), -1, -2)
    return replace(view, sizes=tuple(view.sizes[d] for d in order), strides=tuple(view.strides[d] for d in order))


@lowers(aten._scaled_grouped_mm.default)
def scaled_grouped_mm(
    builder: Builder, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None = None,
    bias: Tensor | None = None, scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """Groups of rows of 8-bit floats by matrices of such, with a scale per row and per column of each matrix. Accumulators are
    float32, whatever `use_fast_accum` allows, and scaled by pointwise work."""
    if bias is not None or scale_result is not None or offs is None or (a.rank, b.rank) != (2, 3):
        raise LoweringError("scaled grouped products but those of rows by matrices, without a bias, are left to the library.")
    check_scaled(builder, a, b, (scale_a, scale_b))
    if (scale_a.rank, scale_b.rank) != (1, 2):
        raise LoweringError("grouped products with scales by blocks are left to the library.")
    shape, result = builder.result_sizes(), builder.result().dtype
    group, by_column = _group_of_rows(builder, shape[0], offs, b.sizes[0]), builder.realize(scale_b)
    left, right = operand_of(builder, a, 0), operand_of(builder, b, 1)
    sums = emit(builder, left, right, _ends(builder, offs), builder.result(), torch.float32)

    def at(point: Point) -> Node:
        own = position(group.at(point[:1]), b.sizes[0], ranges_of(point, shape), checked=False)
        place = Place([ZERO, point[1]])
        place.put(0, own)
        scales = expr.op("mul", torch.float32, scale_a.at(point[:1]), place.load(by_column))
        return convert(expr.op("mul", torch.float32, sums.at(point), scales), result)

    return computed(shape, result, a.device, at)


def _group_of_rows(builder: Builder, rows: Size, offs: Tensor, groups: Size) -> Tensor:
    """The group of each row. Rows beyond the last group, whose products are 0, count to the last one."""

    def before(point: Point) -> Node:
        ended = expr.op("le", torch.bool, widen(offs.at(point[1:]), torch.int64), expr.index_value(point[0]))
        return expr.op("where", torch.int64, ended, *(expr.const(n, torch.int64) for n in (1, 0)))

    ended = computed((rows, offs.sizes[0]), torch.int64, offs.device, before)
    (counted,) = reduce_over(builder, ended, 1, False, (accumulated("sum", torch.int64), torch.int64))
    last = expr.index_value(sizes.expand(groups - 1))
    return computed((rows,), torch.int64, offs.device, lambda point: expr.op("minimum", torch.int64, counted.at(point), last))


def emit(
    builder: Builder, a: View, b: View, ends: View, result: torch.Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Emit the grouped product of matrices, at most one of them batched, in the strides of the traced `result`; dense in `dtype`,
    if given."""
    device = builder.buffers[a.buffer].device
    turned = len(a.sizes) == 3  # groups of columns: (bᵀ · aᵀ)ᵀ
    left, right = (_turned(b), _turned(a)) if turned else (a, b)
    by_rows = len(right.sizes) == 3
    k, groups = (y if y.is_Integer else x for x, y in ((left.sizes[-1], right.sizes[-2]), (ends.sizes[0], right.sizes[0])))
    groups = groups if by_rows else ends.sizes[0]
    left = batched(replace(left, sizes=(left.sizes[0], k)))
    right = batched(replace(right, sizes=(*((groups,) if by_rows else ()), k, right.sizes[-1])))
    ends = replace(ends, sizes=(groups,))
    rows, columns = left.sizes[1], right.sizes[2]
    shape = (columns, rows) if turned else (rows, columns) if by_rows else (groups, rows, columns)
    strides = sizes.contiguous_strides(shape) if dtype else traced_strides(result)
    out = builder.new_buffer(shape, dtype or a.dtype, device, strides)
    view = batched(_turned(whole(out)) if turned else whole(out))
    grouping = Grouping(ends, "m" if by_rows else "k")
    builder.emit(Template(builder.name("grouped_mm"), "mm", left, right, view, None, (builder.origin,), grouping=grouping))
    return stored(whole(out), device)
