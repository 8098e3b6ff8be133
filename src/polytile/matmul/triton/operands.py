"""Tiles of A and B: their addresses, how they are loaded, and how they become operands of the tensor cores. prologue.py handles
operands that are computed.

An operand is (batch, rows, k) for A and (batch, k, columns) for B; its layout names the axis whose stride is known to be 1. A
tile past the end of M or N wraps around (an index modulo the size), so that loads in the loop over k need no mask for it; its
results are never stored. Along k a mask is needed unless the tile size divides K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from polytile.codegen.triton import text
from polytile.facts import Divisible
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

EVEN_K, EVEN_L = Divisible("K", 64), Divisible("L", 64)
"""Regime facts under which blocks of up to 64 along k need no mask."""


def symbol(name: str) -> sympy.Symbol:
    """An integer argument of the kernel: a size or a stride, in elements."""
    return sympy.Symbol(name, integer=True, positive=True)


def symbols(kernel: GemmKernel) -> tuple[sympy.Symbol, ...]:
    """Every integer argument, in order, as expressions have it. Those of the epilogue and of prologues may have any sign."""
    own = {s.name: s for symbols in (kernel.symbols, *(each.symbols for each in kernel.prologue_kernels)) for s in symbols}
    return tuple(own.get(name, symbol(name)) for name in kernel.size_names)


@dataclass(frozen=True)
class Operand:
    """A or B, or P or Q of a second product.

    Attributes
    ----------
    rows
        Its axis other than k.
    size
        The size of that axis, "M" or "N".
    layout
        The axis of stride 1.
    zero
        The value of a masked load.
    depth
        The size of k.
    """

    name: str
    rows: str
    size: str
    layout: str
    batched: bool
    zero: str
    depth: str = "K"

    @property
    def block(self) -> str:
        return f"BLOCK_{self.size}"

    def stride(self, axis: str) -> str:
        """The stride along an axis, as text; "" for 1."""
        return "" if axis == self.layout else f"{self.name.lower()}_stride_{axis}"

    def along(self, axis: str, position: str) -> str:
        """The offset of `position` along an axis, as text."""
        stride = self.stride(axis)
        return f"{position} * {stride}" if stride else position

    def across(self, vector: str, axis: str) -> str:
        """A vector of positions along `axis`, broadcast to a tile's rows or columns: A is rows by k, B is k by columns."""
        first = (axis == "k") == (self.size == "N")
        return f"{vector}[:, None]" if first else f"{vector}[None, :]"

    @property
    def shape(self) -> str:
        return f"[{self.block}, BLOCK_K]" if self.size == "M" else f"[BLOCK_K, {self.block}]"


def operands(kernel: GemmKernel) -> tuple[Operand, Operand]:
    """A and B of the product, as the kernel reads them."""
    spec = kernel.spec
    batched = spec.batched and not spec.grouped  # with groups along k, only the result is batched
    zeros = ["0.0" if dtype.is_floating_point else "0" for dtype in kernel.operand_dtypes]
    return (
        Operand("A", "m", "M", spec.a_layout, batched, zeros[0]),
        Operand("B", "n", "N", spec.b_layout, batched or spec.grouped == "m", zeros[1]),
    )


def second_operands(kernel: GemmKernel) -> tuple[Operand, ...]:
    """P and Q, if there is a second product."""
    if kernel.second is None:
        return ()
    (p, q), batched = kernel.second, kernel.spec.batched
    return Operand("P", "m", "M", p, batched, "0.0", "L"), Operand("Q", "n", "N", q, batched, "0.0", "L")


def even_k(block: int, facts: Facts, depth: str = "K") -> bool:
    """Whether blocks along k divide K (or L, of a second product) wherever the facts hold."""
    if depth in facts.values:
        return facts.values[depth] % block == 0
    even = any(fact.name == depth and fact.by % block == 0 for fact in facts.holding)
    return even or (block == 16 and depth in facts.divisible)


def rows_line(operand: Operand, facts: Facts, wide: bool, of_group: bool = False) -> list[str]:
    """Emit `rows_A` or `rows_B`: the positions that the tile covers, wrapped around at the end. With `of_group`, they are
    relative to `first`, among `count` rows."""
    own = f"rows_{operand.name}"
    first = f"at_{operand.size.lower()} * {operand.block} + tl.arange(0, {operand.block})"
    if of_group:
        return [f"{own} = first + ({first}) % count", *([f"{own} = {own}.to(tl.int64)"] if wide else [])]
    size = str(facts.values.get(operand.size, operand.size))
    lines = [f"{own} = ({first}) % {size}"]
    if operand.layout == operand.rows and facts.divides(operand.size):
        lines.append(f"{own} = tl.max_contiguous(tl.multiple_of({own}, 16), 16)")
    return lines + ([f"{own} = {own}.to(tl.int64)"] if wide else [])


def pointer_lines(operand: Operand, start: str) -> list[str]:
    """Emit `ptr_A` or `ptr_B`, the tile's addresses at the position `start` along k. Needs `ks`, the offsets inside the block."""
    rows = operand.along(operand.rows, operand.across(f"rows_{operand.name}", operand.rows))
    columns = operand.along("k", operand.across(f"({start} + ks)" if start != "0" else "ks", "k"))
    base = f"{operand.name} + {operand.along('b', 'item')}" if operand.batched else operand.name
    return [f"ptr_{operand.name} = {base} + ({rows} + {columns})"]


def load(operand: Operand, even: bool, left: str, inside: str = "") -> str:
    """The text of one load. `left` is the remaining part of K. `inside` names the mask of existing rows, if rows past the end
    must not be read."""
    masks = [] if even else [f"{operand.across('ks', 'k')} < {left}"]
    masks += [operand.across(inside, operand.rows)] if inside else []
    if not masks:
        return f"tl.load(ptr_{operand.name})"
    mask = " & ".join(f"({each})" for each in masks) if len(masks) > 1 else masks[0]
    return f"tl.load(ptr_{operand.name}, mask={mask}, other={operand.zero})"


def advance(operand: Operand) -> str:
    """The statement that moves an operand's pointers by a block along k."""
    return f"ptr_{operand.name} += {operand.along('k', 'BLOCK_K')}"


def widened(kernel: GemmKernel, operand: Operand, value: str) -> str:
    """Convert a tile to the dtype of the product. Integers are converted through float32, as hardware and interpreter convert
    them to 16-bit floats."""
    storage = kernel.operand_dtypes[0 if operand.size == "M" else 1]
    if storage == kernel.in_dtype:
        return value
    return f"{value}.to(tl.float32)" + ("" if kernel.in_dtype == torch.float32 else f".to({text.value_type(kernel.in_dtype)})")
