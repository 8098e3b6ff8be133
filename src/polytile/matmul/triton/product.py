"""The loop over k, which every schedule runs for a tile of the product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import FloorDiv

from polytile.ir.template import SCALED_ALONG_K
from polytile.matmul import scales
from polytile.matmul.triton.operands import Operand, symbol, widened
from polytile.matmul.triton.prologue import feed, positions
from polytile.matmul.triton.unit import Chip, Unit, accumulator
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


def ceil_div(size: sympy.Expr, block: int) -> sympy.Expr:
    """The number of blocks that cover `size`."""
    return FloorDiv(size + block - 1, sympy.Integer(block))


def blocks(unit: Unit) -> sympy.Expr:
    """Number of tiles of the product."""
    tiles = ceil_div(symbol("M"), unit.constants["BLOCK_M"]) * ceil_div(symbol("N"), unit.constants["BLOCK_N"])
    return tiles * symbol("batch") if unit.kernel.spec.batched else tiles


def unit_of(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> Unit:
    """What a kernel of this product is written with; its constants are the blocks of the config."""
    unit = Unit(kernel, config, facts, chip)
    unit.constants = {f"BLOCK_{axis.upper()}": int(config[axis]) for axis in ("m", "n", "k")}
    return unit


def program(unit: Unit) -> str:
    """The number of the program, in 64 bits if some position needs them."""
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


def described(unit: Unit) -> bool:
    """Declare tensor descriptors of both operands, and return True, if the facts allow it: operands in memory, aligned to 16
    bytes, with pitches that are multiples of it, and 32-bit positions. Groups may begin anywhere, and copies only at multiples of
    16 bytes of a row, so a row must not go through groups."""
    able = not unit.facts.wide and not any(unit.kernel.prologues)
    able = able and all(operand.layout != unit.kernel.spec.grouped for operand in unit.operands)
    if not able or not all(_describable(operand, unit.facts) for operand in unit.operands):
        return False
    for operand in unit.operands:
        unit.describe(operand)
    return True


def _describable(operand: Operand, facts: Facts) -> bool:
    apart = [axis for axis in ("b", operand.rows, "k") if axis != operand.layout and (axis != "b" or operand.batched)]
    aligned = operand.name in facts.aligned and all(facts.divides(operand.stride(axis)) for axis in apart)
    return operand.layout != "any" and aligned


def described_product(unit: Unit, start: str = "0", end: str = "") -> None:
    """Emit what `product` emits, with operands loaded through tensor descriptors. The hardware fills what is out of bounds with
    zeros."""
    line = unit.out.line
    unit.out.extend(scales_at(unit))
    line(f"acc = tl.zeros([BLOCK_M, BLOCK_N], {unit.sums})")
    with unit.out.indented(f"for k in range({start}, {end or unit.number('K')}, BLOCK_K):"):
        for operand in unit.operands:
            line(f"{operand.name.lower()} = {_described_tile(unit, operand)}")
        unit.out.extend(dot(unit, "a", "b"))


def _described_tile(unit: Unit, operand: Operand) -> str:
    """The text of the load of a tile at `k`."""
    row, by_k = f"at_{operand.size.lower()} * {operand.block}", operand.layout == "k"
    row = f"({f'first + {row}' if unit.part_of_rows and operand.size == 'M' else row}).to(tl.int32)"
    at = ["item"] * operand.batched + ([row, "k"] if by_k else ["k", row])
    value = f"desc_{operand.name}.load([{', '.join(at)}])"
    if operand.batched:
        value = f"tl.reshape({value}, [{', '.join((operand.block, 'BLOCK_K') if by_k else ('BLOCK_K', operand.block))}])"
    turned = by_k == (operand.name == "B")
    return widened(unit.kernel, operand, f"{value}.T" if turned else value)


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
