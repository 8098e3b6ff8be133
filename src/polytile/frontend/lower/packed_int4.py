"""Products with weights of 4 bits that ATen has packed for its own CPU kernel: constant ones are packed anew for polytile's."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

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
from polytile.ir.sizes import ONE, ZERO, Size

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

    found = grouped(builder, computed((k, n), x.dtype, x.device, element_at))
    if found is None:
        raise LoweringError(f"products with scales of groups of {group} are the library's.")
    return template(builder, x, found[0], x.dtype, first=0, groups=found[1])


def _f32(name: str, *of: Node) -> Node:
    return expr.op(name, torch.float32, *of)
