"""Products with weights of 4 bits that ATen has packed for its own CPU kernel: constant ones are packed anew for polytile's."""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from polytile import options
from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import compare
from polytile.frontend.lower.matmul import NARROW, generator_of, grouped, template
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, convert, stored, widen
from polytile.frontend.lower.views import has_static_zero
from polytile.ir import expr
from polytile.ir.buffer import View
from polytile.ir.expr import Node
from polytile.ir.sizes import ONE, ZERO, Size, contiguous_strides
from polytile.ir.template import PackedInt4

aten = torch.ops.aten

PANEL, HALF = 64, 32
"""Columns of a panel, and bytes that it has for each k: their low halves are its first columns, their high halves the others.
This is what ATen packs where it has AVX-512 and the number of columns is a multiple of a panel's (native/cpu/int4mm_kernel.cpp,
`weight_to_int4pack_kernel`)."""
HALVES = (("bitwise_and", 15), ("shift_right", 4))
"""What makes numbers of a byte's low and high half."""
MIDDLE = 8
"""The number that stands for 0."""
LEAST_SCALE = 1e-30
"""Stands for a scale of 0."""


@lowers(aten._weight_int4pack_mm_for_cpu.default)
def weight_int4pack_mm_for_cpu(builder: Builder, x: Tensor, weight: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """x [M, K] · Wᵀ with W = (q - 8)·s + z [N, K]: q are the weight's numbers of 4 bits, uint8 [N, K / 2]; s and z are
    `scales_and_zeros[k // group, n]`.

    Kernels subtract before they scale, so W is (q - (8 - z / s))·s here, with s = 1e-30 where s is 0.

    Raises
    ------
    LoweringError
        Where the weight is not constant, so that it would be unpacked in each call, or is packed for other vectors.
    """
    view, sizes = weight.view, (*weight.sizes, *scales_and_zeros.sizes)
    constant = view is not None and builder.buffers[view.buffer].weight == "constant" and options.get("packed_weights_mib") > 0
    if not constant or generator_of(x.device) != "cpu" or x.dtype not in NARROW["cpu"][1] or has_static_zero(x.sizes):
        raise LoweringError("products with weights that ATen has packed in 4 bits, and that may change, are the library's.")
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not all(size.is_Integer for size in sizes) or sizes[0] % PANEL:
        raise LoweringError(f"products with weights that ATen has packed in other panels than {PANEL} columns are the library's.")
    assert view is not None
    n, k = sizes[0], 2 * sizes[1]
    packed = stored(View(view.buffer, torch.uint8, (n * sizes[1],), (ONE,), view.offset), x.device)

    def number(row: Size, column: Size) -> Node:
        panel, half = FloorDiv(column, sympy.Integer(PANEL)), FloorDiv(column, sympy.Integer(HALF))
        byte = packed.at(((panel * k + row) * HALF + column - HALF * half,))
        low, high = (expr.op(name, torch.uint8, byte, expr.const(bits, torch.uint8)) for name, bits in HALVES)
        return expr.op("where", torch.uint8, compare("lt", column - PANEL * panel, sympy.Integer(HALF)), low, high)

    def scale_and_zero(row: Size, column: Size) -> tuple[Node, Node]:
        at = FloorDiv(row, sympy.Integer(group)), column
        scale, zero = (widen(scales_and_zeros.at((*at, which)), torch.float32) for which in (ZERO, ONE))
        none = expr.op("eq", torch.bool, scale, expr.const(0.0, torch.float32))
        return expr.op("where", torch.float32, none, expr.const(LEAST_SCALE, torch.float32), scale), zero

    def element_at(point: Point) -> Node:
        scale, zero = scale_and_zero(*point)
        middle = _f32("sub", expr.const(float(MIDDLE), torch.float32), _f32("div", zero, scale))
        return convert(_f32("mul", _f32("sub", convert(number(*point), torch.float32), middle), scale), x.dtype)

    scaled = grouped(builder, computed((k, n), x.dtype, x.device, element_at))
    if scaled is None:
        raise LoweringError(f"products with scales of groups of {group} are the library's.")
    return template(builder, x, scaled[0], x.dtype, first=0, groups=scaled[1])


def _fills_its_buffer(tensor: Tensor) -> bool:
    """Whether the tensor is stored row by row from its buffer's first element on."""
    return tensor.view is not None and tensor.view.offset == 0 and tensor.view.strides == contiguous_strides(tensor.sizes)


def _f32(name: str, *of: Node) -> Node:
    return expr.op(name, torch.float32, *of)


TILE, LANES, DEPTH = map(sympy.Integer, (8, 32, 16))
"""Columns, threads, and elements along k of one tile of `torch._convert_weight_to_int4pack`, whose result is the operand of the
tensor cores' m16n8k16 instruction in registers: int32 [N / 8, K / (16 * tiles), 32, tiles / 2] (native/cuda/int4mm.cu,
`matrix_to_m16n8k16_Bint4_layout`)."""


@lowers(aten._weight_int4pack_mm.default)
def weight_int4pack_mm(builder: Builder, x: Tensor, weight: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """x [M, K] · Wᵀ on a GPU, with W as in `weight_int4pack_mm_for_cpu`, rounded to x's type as ATen's kernel rounds it.

    Eight elements are in a word: those of one column at k = 32·c + 8·i + 2·j + b, for i < 4 and b < 2, at bit 16·b + 4·i.
    """
    if generator_of(x.device) != "gpu" or x.dtype != torch.bfloat16 or torch.version.hip is not None:
        raise LoweringError(f"products of {x.dtype} on {x.device.type} with weights packed in 4 bits for GPUs are the library's.")
    if has_static_zero(x.sizes) or not all(size.is_Integer for size in weight.sizes):
        raise LoweringError("products of nothing, or with packed weights whose sizes change, are the library's.")
    tiles, group = 2 * weight.sizes[3], sympy.Integer(group)
    n, k = TILE * weight.sizes[0], DEPTH * tiles * weight.sizes[1]

    def element_at(point: Point) -> Node:
        row, column = point
        thread = 4 * ModularIndexing(column, ONE, TILE) + ModularIndexing(row, 2, 4)
        word = weight.at((FloorDiv(column, TILE), FloorDiv(row, DEPTH * tiles), thread, ModularIndexing(row, LANES, tiles // 2)))
        place = 16 * ModularIndexing(row, ONE, 2) + 4 * ModularIndexing(row, 8, 4)
        bit = expr.op("cast", torch.int32, expr.index_value(place))
        number = expr.op("bitwise_and", torch.int32, expr.op("shift_right", torch.int32, word, bit), expr.const(15, torch.int32))
        scale, zero = (widen(scales_and_zeros.at((FloorDiv(row, group), column, which)), torch.float32) for which in (ZERO, ONE))
        centred = convert(expr.op("sub", torch.int32, number, expr.const(MIDDLE, torch.int32)), torch.float32)
        return convert(_f32("add", _f32("mul", centred, scale), zero), x.dtype)

    dense = all(_fills_its_buffer(tensor) for tensor in (weight, scales_and_zeros))
    packed = PackedInt4(int(tiles), int(group)) if dense else None
    by_columns = replace(computed((k, n), x.dtype, x.device, element_at), layout=(ONE, k))
    return template(builder, x, by_columns, x.dtype, first=0, int4=packed)
