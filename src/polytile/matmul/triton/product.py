"""The loop over k, which every schedule runs for a tile of the product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import FloorDiv

from polytile.ir.template import SCALED_ALONG_K
from polytile.matmul import scales
from polytile.matmul.triton.operands import Operand, symbol
from polytile.matmul.triton.prologue import feed, positions
from polytile.matmul.triton.unit import Chip, Unit, accumulator
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


def ceil_div(size: sympy.Expr, block: int) -> sympy.Expr:
    return FloorDiv(size + block - 1, sympy.Integer(block))


def blocks(unit: Unit) -> sympy.Expr:
    """Number of tiles of the product."""
    tiles = ceil_div(symbol("M"), unit.constants["BLOCK_M"]) * ceil_div(symbol("N"), unit.constants["BLOCK_N"])
    return tiles * symbol("batch") if unit.kernel.spec.batched else tiles


def unit_of(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> Unit:
    unit = Unit(kernel, config, facts, chip)
    unit.constants = {f"BLOCK_{axis.upper()}": int(config[axis]) for axis in ("m", "n", "k")}
    return unit


def program(unit: Unit) -> str:
    return "tl.program_id(0)" + (".to(tl.int64)" if unit.facts.wide else "")


def product(unit: Unit, start: str = "0", end: str = "") -> None:
    """Emit the loop that accumulates in `acc` the tile at (at_m, at_n), over k from `start` up to `end`, and a second product,
    which is never split."""
    shape = "[BLOCK_N, BLOCK_M]" if unit.swapped else "[BLOCK_M, BLOCK_N]"
    unit.out.extend(positions(unit))
    _terms(unit, unit.operands, start, end or unit.number("K"), f"acc = tl.zeros({shape}, {unit.sums})")
    if unit.second:
        _terms(unit, unit.second, "0", unit.number("L"))
    if unit.swapped:
        unit.out.line("acc = acc.T")


def _terms(unit: Unit, pair: Sequence[Operand], start: str, end: str, begin: str = "") -> None:
    """Emit the accumulation to `acc` of the products of two operands' tiles from `start` up to `end`. The line `begin`
    initialises it."""
    line, feeds = unit.out.line, [feed(unit, operand, start) for operand in pair]
    for each in feeds:
        unit.out.extend(each.before())
    unit.out.extend(scales_at(unit))
    if begin:
        line(begin)
    with unit.out.indented(f"for k in range({start}, {end}, BLOCK_K):"):
        for name, each in zip("ab", feeds, strict=True):
            unit.out.extend(each.inside(name))
        unit.out.extend(dot(unit, "a", "b"))
        for each in feeds:
            unit.out.extend(each.after())


def scales_at(unit: Unit) -> list[str]:
    """Emit `scales_a` and `scales_b`, the addresses of the first scales along k for the tile's rows and columns."""
    if unit.kernel.scales is None:
        return []
    lines = []
    rows = {name: blocks[name == "SB"] for name, blocks in scales.blocks(unit.kernel).items()}
    for name, size, axis, shared in zip("ab", "MN", "mn", rows.values(), strict=True):
        first = f"at_{axis} * BLOCK_{size} + tl.arange(0, BLOCK_{size})"
        place = f"({first}) % {unit.number(size)}" + (f" // {shared}" if shared > 1 else "")
        wide = ".to(tl.int64)" if unit.facts.wide else ""
        lines.append(f"scales_{name} = S{name.upper()} + ({place}){wide} * {unit.number(f's{name}_stride_{axis}')}")
    return lines


def dot(unit: Unit, a: str, b: str) -> list[str]:
    """Emit acc += a @ b.

    float32 operands are rounded to TF32 only if PyTorch's switch allows it. Tensor cores accumulate 8-bit floats with fewer bits
    than float32 has, so only within one step. With block scales, a step along k lies within one block.
    """
    options = ""
    if unit.kernel.spec.dtype == "float32":
        options = f', input_precision="{"tf32" if unit.kernel.tf32 else "ieee"}"'
    if unit.kernel.in_dtype.is_floating_point and unit.kernel.in_dtype.itemsize == 1:
        options = f", max_num_imprecise_acc={unit.constants['BLOCK_K']}"
    if accumulator(unit.kernel.in_dtype).itemsize == 4 and not unit.kernel.in_dtype.is_floating_point:
        options = ", out_dtype=tl.int32"
    if unit.kernel.scales is None:
        left, right = (f"{b}.T", f"{a}.T") if unit.swapped else (a, b)
        return [f"acc = tl.dot({left}, {right}, acc{options})"]
    along = {name: f"k // {SCALED_ALONG_K} * {unit.number(f's{name}_stride_k')}" for name in "ab"}
    factors = [f"scale_{name} = tl.load(scales_{name} + {place})" for name, place in along.items()]
    return [*factors, f"acc += tl.dot({a}, {b}) * (scale_a[:, None] * scale_b[None, :])"]
