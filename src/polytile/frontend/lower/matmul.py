"""Lowers matrix products to templates over stored operands with any strides. Bias and scale are loops that read the product.

The passes fuse these loops as epilogues. Products of dtypes other than `OPERAND_DTYPES` are library calls. An int8 operand that
the graph converts to the other operand's dtype is read as int8 and converted by the kernel. int8 products are accumulated and
returned in int32, products of 8-bit floats in float32; their scales are pointwise work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import sympy
import torch
from torch._higher_order_ops.out_dtype import out_dtype as out_dtype_operator
from torch.utils._sympy.functions import FloorDiv

from polytile import options
from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import is_dense, traced_argument, traced_strides
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import (
    Point,
    Tensor,
    broadcast_point,
    check_broadcast,
    computed,
    convert,
    stored,
    widen,
)
from polytile.frontend.lower.views import has_static_zero
from polytile.ir import expr, sizes
from polytile.ir.buffer import View, whole
from polytile.ir.dtypes import FLOAT8
from polytile.ir.expr import Const, Load, Node, Op
from polytile.ir.ranges import integer_range
from polytile.ir.sizes import ONE, ZERO, Size
from polytile.ir.template import PackedInt4, Scales, Template

aten = torch.ops.aten

OPERAND_DTYPES = {"cpu": (torch.float32, torch.float64, torch.bfloat16), "gpu": (torch.float32, torch.bfloat16, torch.float16)}
_FLOATS = OPERAND_DTYPES["gpu"]
NARROW = {"cpu": ((), (torch.float32, torch.bfloat16)), "gpu": (_FLOATS, _FLOATS)}
"""The dtypes of A and of B to which generated products convert int8 as they read it."""
EXACT = -256, 256
"""Integers that every floating type of 16 bits or more holds."""
GROUPS = (16, 1024)
"""Minimum and maximum number of elements along k that share a scale, for kernels that scale each group's partial sums."""
CONVERSIONS = ("cast", "round_bf16", "round_f16")
WHOLE, BY_ROWS = 0, 1
"""Values of `torch.nn.functional.ScalingType`: one scale per operand, or one per row or column."""
SCALED_ROWS = 128
"""Rows of A, or columns of B, that share a scale in block-scaled products."""
Number: TypeAlias = "bool | int | float | Size"


def product(builder: Builder, a: Tensor, b: Tensor, first: int) -> Tensor:
    """out[..., m, n] = Σ_k a[..., m, k]·b[..., k, n] for operands of rank 2 or 3, stored; zero if k is 0.

    `first` is the position of `a` among the current node's arguments.
    """
    for operand in (a, b):
        if operand.dtype not in OPERAND_DTYPES.get(generator_of(operand.device), ()):
            raise LoweringError(f"matrix products of type {operand.dtype} on {operand.device.type} are left to the library.")
    if a.dtype != b.dtype:
        raise LoweringError(f"a product of {a.dtype} and {b.dtype} is left to the library.")
    shape = (*a.sizes[:-1], b.sizes[-1])
    if has_static_zero(a.sizes) or has_static_zero(b.sizes):
        return computed(shape, a.dtype, a.device, lambda point: expr.const(0, a.compute_dtype))
    if generator_of(a.device) == "cpu":  # on a GPU, prologues do this
        if (factors := column_factor(builder, b)) is not None:
            return scaled_columns(template(builder, a, factors[0], torch.float32, first), factors[1], a.dtype)
        if (groups := grouped(builder, b)) is not None:
            return template(builder, a, groups[0], a.dtype, first, groups=groups[1])
    return template(builder, a, b, a.dtype, first)


def template(
    builder: Builder, a: Tensor, b: Tensor, dtype: torch.dtype, first: int, scales: tuple[Tensor, Tensor] | None = None,
    groups: Scales | None = None, int4: PackedInt4 | None = None,
) -> Tensor:
    """Emit the product as a template with a result of dtype `dtype`; see `product`.

    `scales` holds the block scales of `a` (row blocks, k blocks) and of `b` (k blocks, column blocks). `groups` holds scales of
    `b` alone; `int4` says from which packed weights `b` is computed.
    """
    narrow = [narrow_view(operand, side) for side, operand in enumerate((a, b))]
    if all(view is not None for view in narrow):
        narrow = [None, None]  # two int8 operands would be multiplied as integers
    views = [view or operand_of(builder, o, k) for k, (o, view) in enumerate(zip((a, b), narrow, strict=True), first)]
    out = builder.new_buffer((*a.sizes[:-1], b.sizes[-1]), dtype, a.device)
    origins = (builder.origin,)
    left, right = agreed(*(batched(view) for view in views))
    shared: tuple[Scales | None, Scales] | None = (None, groups) if groups is not None else None
    if scales is not None:
        shared = _by_blocks(builder, scales, left, right)
    builder.emit(Template(builder.name("mm"), "mm", left, right, batched(whole(out)), None, origins, scales=shared, int4=int4))
    return stored(whole(out), a.device)


def _by_blocks(builder: Builder, scales: tuple[Tensor, Tensor], left: View, right: View) -> tuple[Scales, Scales]:
    """Per-row and per-column scales if there are as many as rows and columns, else block scales. PyTorch has checked the shapes
    when the graph was traced."""
    views = [builder.stored(scale) for scale in scales]
    a, b = (batched(view) for view in views)
    alone = sizes.equal(a.sizes[1], left.sizes[1]), sizes.equal(b.sizes[2], right.sizes[2])
    along = b.sizes[1] if b.sizes[1].is_Integer else a.sizes[2]
    a, b = replace(a, sizes=(*a.sizes[:2], along)), replace(b, sizes=(ONE, along, b.sizes[2]))
    return Scales(a, 1 if alone[0] else SCALED_ROWS), Scales(b, 1 if alone[1] else SCALED_ROWS)


def generator_of(device: torch.device) -> str:
    """The kind of code generator for a device: "cpu", "gpu", or the type of a device without one."""
    return "gpu" if device.type == "cuda" or (device.type == "cpu" and options.get("interpret")) else device.type


def narrow_view(operand: Tensor, side: int) -> View | None:
    """A view of the int8 matrix of which `operand`, A (side 0) or B, is a plain conversion. None if it is not one, or if
    generated products do not read it. Every floating dtype represents int8 exactly, so the conversion does not round."""
    if operand.node is None or operand.dtype not in NARROW[generator_of(operand.device)][side]:
        return None
    node = _unconverted(operand.node)
    if not isinstance(node, Load) or node.dtype != torch.int8 or node.indirect or node.mask is not None:
        return None
    strides = [sizes.coefficient(node.index, axis) for axis in operand.axes]
    if any(stride is None for stride in strides):
        return None
    offset = sizes.substitute(node.index, dict.fromkeys(operand.axes, ZERO))
    return View(node.buffer, torch.int8, operand.sizes, tuple(s for s in strides if s is not None), offset)


def column_factor(builder: Builder, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """(q, s) if `b` is q·s, where q has 8 bits (see `number_of`) or is a weight of 8-bit floats, and s does not vary along k,
    such as a quantised weight's per-channel scale: Σ a·q·s = s · Σ a·q. None otherwise."""
    for q, s in _factors(b.node):
        number = number_of(builder, b, q) or float8_weight(builder, b, q)
        if b.axes[-2] not in expr.free_symbols(s) and number is not None:
            return number, replace(b, node=s, call=None)
    return None


def number_of(builder: Builder, b: Tensor, node: Node) -> Tensor | None:
    """`node`, a factor of `b`, as an operand that is read as int8: a plain conversion of int8, or an integer expression of 8 bits
    on one weight's elements, such as numbers of 4 bits out of bytes less a constant, of which panels are made once. None where it
    is neither."""
    number = replace(b, node=node, call=None)
    if narrow_view(number, side=1) is not None:
        return number
    node = _unconverted(node)
    if isinstance(node, Op) and node.name == "sub":
        node = difference(*map(_unconverted, node.args)) or node
    sources = {load.buffer for load in expr.loads(node)}
    of_weight = len(sources) == 1 and all(builder.buffers[name].weight for name in sources)
    static = all(size.is_Integer for size in b.sizes)
    limits = integer_range(node) if of_weight and static and b.rank == 2 else None
    if limits is None or limits[0] < -128 or limits[1] > 127:
        return None
    return replace(number, node=convert(node, torch.int8), dtype=torch.int8)


def float8_weight(builder: Builder, b: Tensor, node: Node) -> Tensor | None:
    """`node`, a factor of `b`, as an operand of `b`'s type, if it converts a weight of 8-bit floats, which does not round. Panels
    of it are made once. None if it does not, or if products of `b`'s type are not added up in float32."""
    load = _unconverted(node)
    if not isinstance(load, Load) or b.dtype not in NARROW["cpu"][1]:
        return None
    buffer = builder.buffers[load.buffer]
    return replace(b, node=load, call=None) if buffer.weight and buffer.dtype in FLOAT8 else None


def difference(number: Node, less: Node) -> Node | None:
    """number - less in int32, of an integer expression and a constant: what floating types make of it too, where neither operand
    needs rounding in any of them. None where one might, or is something else."""
    limits = integer_range(number)
    if limits is None or not isinstance(less, Const) or not float(less.value).is_integer():
        return None
    if not all(EXACT[0] <= each <= EXACT[1] for each in (*limits, less.value)):
        return None
    return expr.op("sub", torch.int32, convert(number, torch.int32), expr.const(int(less.value), torch.int32))


def grouped(builder: Builder, b: Tensor) -> tuple[Tensor, Scales] | None:
    """(q, its scales and zeros) if `b` is q·s or (q - z)·s, where q has 8 bits (see `number_of`) and s and z are constant over
    groups along k; None otherwise. Scales and zeros are stored as float32, one per group."""
    if b.rank != 2:
        return None
    for q, s in _factors(b.node):
        inner, number, z = _unconverted(q), number_of(builder, b, q), None
        if number is None and isinstance(inner, Op) and inner.name == "sub":
            number, z = number_of(builder, b, inner.args[0]), inner.args[1]
        of_groups = [node for node in (s, z) if node is not None]
        group = group_along(b.axes[0], of_groups)
        if group is None or number is None:
            continue
        count = FloorDiv(b.sizes[0] + group - 1, sympy.Integer(group))

        def by_group(node: Node, group: int = group) -> Callable[[Point], Node]:
            whole_b = replace(b, node=node, call=None)
            return lambda point: widen(whole_b.at((group * point[0], point[1])), torch.float32)

        views = [
            batched(builder.stored(computed((count, b.sizes[1]), torch.float32, b.device, by_group(node)))) for node in of_groups
        ]
        return number, Scales(views[0], 1, group, views[1] if z is not None else None)
    return None


def group_along(k: sympy.Symbol, nodes: Sequence[Node]) -> int | None:
    """The size of the groups of neighbours along `k` within which the values of `nodes` are constant. Their indices contain k
    only as k // d; the size is the greatest common divisor of all d. None if they use k otherwise, or no kernel supports such
    groups."""
    indices = [index for node in expr.walk(*nodes) for index in node.indices]
    divisions = {part for index in indices for part in index.atoms(FloorDiv) if part.args[0] == k and part.args[1].is_Integer}
    apart = dict.fromkeys(divisions, sizes.ZERO)
    if not divisions or any(k in index.xreplace(apart).free_symbols for index in indices):
        return None
    group = math.gcd(*[int(part.args[1]) for part in divisions])
    return group if GROUPS[0] <= group <= GROUPS[1] else None


def _factors(node: Node | None) -> Iterator[tuple[Node, Node]]:
    """The factors of a product in both orders, looking through conversions."""
    node = _unconverted(node) if node is not None else None
    if isinstance(node, Op) and node.name == "mul":
        yield node.args[0], node.args[1]
        yield node.args[1], node.args[0]


def _unconverted(node: Node) -> Node:
    while isinstance(node, Op) and node.name in CONVERSIONS:
        node = node.args[0]
    return node


def scaled_columns(sums: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`sums` times `scale`, of which any row can be used."""

    def element_at(point: Point) -> Node:
        *batch, _, n = point
        return convert(expr.op("mul", sums.compute_dtype, sums.at(point), widen(scale.at((*batch, ZERO, n)), sums.dtype)), dtype)

    return computed(sums.sizes, dtype, sums.device, element_at)


def operand_of(builder: Builder, operand: Tensor, k: int) -> View:
    """`operand`, argument `k` of the current node, stored. A computed operand gets the memory order of eager, so that the
    transpose of a computed matrix is written row by row and read as a transpose."""
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


def agreed(left: View, right: View) -> tuple[View, View]:
    """The operands with the same expression for each size that they share. Guards hold the sizes equal, however they are written;
    a number is preferred."""
    batch, k = (b if b.is_Integer else a for a, b in zip((left.sizes[0], left.sizes[2]), right.sizes[:2], strict=True))
    return (replace(left, sizes=(batch, left.sizes[1], k)), replace(right, sizes=(batch, k, right.sizes[2])))


def plus(builder: Builder, bias: Tensor, result: Tensor, beta: Number, alpha: Number) -> Tensor:
    """beta·bias + alpha·result at the current node's sizes. A bias times 0 is not read, so its NaNs do not propagate."""
    shape = builder.result_sizes()

    def scaled(node: Node, factor: Number) -> Node:
        if factor == 1:
            return node
        return expr.op("mul", node.dtype, node, widen(builder.element(factor, (), ()), result.dtype))

    def element_at(point: Point) -> Node:
        value = scaled(result.at(point), alpha)
        if beta != 0:
            added = widen(bias.at(broadcast_point(bias.sizes, shape, point)), result.dtype)
            value = expr.op("add", value.dtype, scaled(added, beta), value)
        return convert(value, result.dtype)

    return computed(shape, result.dtype, result.device, element_at)


@lowers(aten.mm.default, aten.bmm.default)
def mm(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    """A product of one column and one row is computed where it is used, as there is no reduction."""
    able = a.dtype == b.dtype and a.dtype in OPERAND_DTYPES.get(generator_of(a.device), ())
    if not able or ONE not in (a.sizes[-1], b.sizes[-2]):
        return product(builder, a, b, first=0)

    def element_at(point: Point) -> Node:
        *batch, m, n = point
        return convert(expr.op("mul", a.compute_dtype, a.at((*batch, m, ZERO)), b.at((*batch, ZERO, n))), a.dtype)

    return computed(builder.result_sizes(), a.dtype, a.device, element_at)


@lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(builder: Builder, bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    check_broadcast(bias.sizes, builder.result_sizes())
    return plus(builder, bias, product(builder, a, b, first=1), beta, alpha)


@lowers(aten._int_mm.default)
def int_mm(builder: Builder, a: Tensor, b: Tensor, first: int = 0) -> Tensor:
    """int8 × int8, accumulated and returned in int32."""
    if generator_of(a.device) not in OPERAND_DTYPES or (a.dtype, b.dtype) != (torch.int8, torch.int8):
        raise LoweringError(f"products of {a.dtype} and {b.dtype} in int32 on {a.device.type} are left to the library.")
    if has_static_zero(a.sizes) or has_static_zero(b.sizes):
        return computed((a.sizes[0], b.sizes[1]), torch.int32, a.device, lambda point: expr.const(0, torch.int32))
    return template(builder, a, b, torch.int32, first)


@lowers(out_dtype_operator)
def product_in(builder: Builder, operator: Any, dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    """aten.mm of int8 in int32: like `torch._int_mm`, but without its library's limits on sizes."""
    if operator is not aten.mm.default or dtype != torch.int32:
        raise LoweringError(f"{operator} in {dtype} is left to the library.")
    return int_mm(builder, a, b, first=2)


@lowers(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(builder: Builder, x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x · (weight · scales)ᵀ for an int8 weight [N, K] and a scale for each of its rows, which multiplies the accumulators."""
    able = x.dtype in NARROW.get(generator_of(x.device), ((), ()))[1]
    if not able or has_static_zero(x.sizes) or has_static_zero(weight.sizes):
        raise LoweringError(f"products of {x.dtype} on {x.device.type} with int8 weights, or of nothing, are the library's.")
    k, n = weight.sizes[::-1]
    number = computed((k, n), x.dtype, x.device, lambda point: convert(weight.at(point[::-1]), x.dtype))
    scale = computed((k, n), scales.dtype, x.device, lambda point: scales.at((point[1],)))
    return scaled_columns(template(builder, x, number, torch.float32, first=0), scale, x.dtype)


@lowers(aten._scaled_mm.default)
def scaled_mm(
    builder: Builder, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """A product of 8-bit floats with scales.

    Scales are per operand, per row of A and column of B, or per block of 1 or 128 rows or columns by 128 elements along k.
    Accumulators are float32, whatever `use_fast_accum` allows.
    """
    if scale_result is not None:
        raise LoweringError("scaled products with scaled results are left to the library.")
    check_scaled(builder, a, b, (scale_a, scale_b))
    if not _by_rows(builder, (scale_a, scale_b)):
        if scale_a.rank != 2 or scale_b.rank != 2 or bias is not None:
            raise LoweringError("products with scales by blocks and a bias are left to the library.")
        return template(builder, a, b, builder.result().dtype, first=0, scales=(scale_a, scale_b))
    return _scaled_by_rows(builder, a, b, (scale_a, scale_b), bias)


@lowers(aten._scaled_mm_v2.default)
def scaled_mm_v2(
    builder: Builder, a: Tensor, b: Tensor, scale_a: Sequence[Tensor], recipe_a: Sequence[int],
    swizzle_a: Sequence[int], scale_b: Sequence[Tensor], recipe_b: Sequence[int], swizzle_b: Sequence[int],
    bias: Tensor | None = None, out_dtype: torch.dtype | None = None, contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """8-bit floats with one scale per operand, or one per row of A and column of B. Recipes by blocks of 128 are decomposed,
    others are library calls."""
    recipes = tuple(recipe_a), tuple(recipe_b)
    if recipes not in (((WHOLE,), (WHOLE,)), ((BY_ROWS,), (BY_ROWS,))) or any((*swizzle_a, *swizzle_b)):
        raise LoweringError("products with scales by blocks of 16 or 32, or several for each operand, are left to the library.")
    if tuple(contraction_dim) not in ((), (1, 0)):
        raise LoweringError("scaled products along other dimensions than the last of A are left to the library.")
    scales = scale_a[0], scale_b[0]
    check_scaled(builder, a, b, scales)
    if not (all(map(_is_one, scales)) if recipes[0] == (WHOLE,) else _by_rows(builder, scales)):
        raise LoweringError("products with scales of other shapes than their recipes have are left to the library.")
    return _scaled_by_rows(builder, a, b, scales, bias)


def check_scaled(builder: Builder, a: Tensor, b: Tensor, scales: Sequence[Tensor]) -> None:
    """Raise LoweringError if no product of these scaled operands is generated."""
    if generator_of(a.device) != "gpu" or a.dtype not in FLOAT8 or b.dtype not in FLOAT8 or a.dtype != b.dtype:
        raise LoweringError(f"scaled products of {a.dtype} and {b.dtype} on {a.device.type} are left to the library.")
    if builder.result().dtype.itemsize == 1 or has_static_zero(a.sizes) or has_static_zero(b.sizes):
        raise LoweringError("scaled products with 8-bit results, or of nothing, are left to the library.")
    if a.sizes[-1] != b.sizes[-2]:  # no guard holds them equal
        raise LoweringError("scaled products of operands that are not known to fit are left to the library.")
    if any(scale.dtype != torch.float32 for scale in scales):
        raise LoweringError("products with scales in other types than float32 are left to the library.")


def _by_rows(builder: Builder, scales: Sequence[Tensor]) -> bool:
    """Whether each operand has either one scale, or one per row of A or column of B."""
    m, n = builder.result_sizes()
    wholes = zip(scales, ((m, ONE), (ONE, n)), strict=True)
    return all(_is_one(scale) or tuple(scale.sizes) == of_rows for scale, of_rows in wholes)


def _scaled_by_rows(builder: Builder, a: Tensor, b: Tensor, scales: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """Accumulators in float32, scaled by pointwise work."""
    shape, result = builder.result_sizes(), builder.result().dtype
    sums = template(builder, a, b, torch.float32, first=0)

    def element_at(point: Point) -> Node:
        value = sums.at(point)
        for scale in scales:
            place = (ZERO,) * scale.rank if _is_one(scale) else broadcast_point(scale.sizes, shape, point)
            value = expr.op("mul", value.dtype, value, scale.at(place))
        if bias is not None:
            value = expr.op("add", value.dtype, value, widen(bias.at(broadcast_point(bias.sizes, shape, point)), torch.float32))
        return convert(value, result)

    return computed(shape, result, a.device, element_at)


def _is_one(scale: Tensor) -> bool:
    return all(n == 1 for n in scale.sizes)
