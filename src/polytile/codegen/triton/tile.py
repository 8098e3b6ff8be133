"""The part of a loop that one Triton program works on: a block of up to three dimensions, the vector axis last.

    POINTWISE   [z, y, x]   parallel axes; the rest are scalars of the program
    ROW         [x, r1, r]  rows, flattened; the next reduced axis; the vector axis
    COLUMN      [r1, r, x]  the two innermost reduced axes; the vector axis

A dimension with a block of 1 is a scalar of the program, not a dimension of the block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import sympy
from torch.utils._sympy.functions import FloorDiv

from polytile.ir import divisions, expr, sizes
from polytile.ir.loop import Axis
from polytile.schedule.answers import Share
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Form, Nest


@dataclass(frozen=True)
class Dim:
    """Axes (flattened if several) divided into blocks of `block` points. `name` is the block's constexpr; variables use
    its lower case. If blocks are parts of larger ones, `whole` is the size of those. The larger ones may overhang even
    where the parts divide the axes."""

    name: str
    axes: tuple[Axis, ...]
    block: int
    reduced: bool = False
    whole: int = 0

    @cached_property
    def size(self) -> sympy.Expr:
        return sympy.expand(sizes.product([a.size for a in self.axes]))

    @property
    def variable(self) -> str:
        """The variable of the position along the dimension, named like its axis if there is only one."""
        return self.axes[0].symbol.name if len(self.axes) == 1 else self.name.lower()

    @property
    def mask(self) -> str:
        return f"in_{self.variable}"


@dataclass(frozen=True)
class Tile:
    """The layout of one config: every parallel dimension, outermost first, and every reduced one in the order of
    traversal. `whole`: no block overhangs."""

    nest: Nest
    facts: Facts
    parallel: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    whole: bool = field(default=False, kw_only=True)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the block, in order."""
        rows = self.nest.form is Form.ROW
        order = self.parallel + self.reduced if rows else self.reduced + self.parallel
        return tuple(d for d in order if d.block > 1)

    @property
    def rank(self) -> int:
        return len(self.dims)

    def divided(self, schedule: GpuSchedule) -> Dim | None:
        """The reduced dimension that programs all over the grid divide among themselves; None if they share no rows."""
        named = (schedule.blocks.along or "r").upper() if schedule.chunked else None
        return next((dim for dim in self.reduced if dim.name == named), None)

    @cached_property
    def _of_symbol(self) -> dict[sympy.Symbol, Dim]:
        return {a.symbol: d for d in self.dims for a in d.axes}

    def varies(self, symbols: frozenset[sympy.Symbol]) -> frozenset[Dim]:
        """The dimensions of the block along which an index over `symbols` varies."""
        return frozenset(self._of_symbol[s] for s in symbols if s in self._of_symbol)

    @cached_property
    def parallel_dims(self) -> frozenset[Dim]:
        return frozenset(d for d in self.dims if not d.reduced)

    @cached_property
    def all_dims(self) -> frozenset[Dim]:
        return frozenset(self.dims)

    @cached_property
    def reduced_at(self) -> tuple[int, ...]:
        """Positions of the reduced dimensions in the block."""
        return tuple(k for k, d in enumerate(self.dims) if d.reduced)

    def shape(self, dims: frozenset[Dim]) -> str:
        """Shape of a block that is full along `dims` and 1 elsewhere."""
        return "[" + ", ".join(d.name if d in dims else "1" for d in self.dims) + "]"

    def along(self, dim: Dim) -> str:
        """Subscript that turns a vector into a block that varies only along `dim`."""
        if self.rank == 1:
            return ""
        return "[" + ", ".join(":" if d == dim else "None" for d in self.dims) + "]"

    def even(self, dim: Dim) -> bool:
        """Whether the facts prove that blocks divide the dimension, so that none overhangs."""
        return self.whole or dim.block == 1 or divides(dim.whole or dim.block, dim.size, self.facts)

    def masks(self, dims: frozenset[Dim]) -> list[str]:
        """Conditions that keep a block inside the loop along `dims`."""
        return [d.mask for d in self.dims if d in dims and not self.even(d)]

    @cached_property
    def tiles(self) -> tuple[sympy.Expr, ...]:
        """Number of blocks along each parallel dimension."""
        return tuple(blocks(d.size, d.block) for d in self.parallel)


def blocks(size: sympy.Expr, block: int) -> sympy.Expr:
    """⌈size / block⌉."""
    if block == 1:
        return size
    return FloorDiv(size + block - 1, sympy.Integer(block))


def divides(block: int, size: sympy.Expr, facts: Facts) -> bool:
    """Whether the power of two `block` divides `size`, which is not 0, wherever the facts hold: `block` divides all
    coefficients of its polynomial in the quotients of the divisible integers."""
    known = with_facts(size, facts)
    if known.is_Integer:
        return bool(known % block == 0) and known > 0
    if sizes.has_division(known):
        return False
    return all(term.as_coeff_Mul()[0] % block == 0 for term in sympy.Add.make_args(sympy.expand(known)))


def quotient(symbol: sympy.Symbol, facts: Facts) -> sympy.Symbol:
    """The quotient of `symbol` by the power of two known to divide it: n0_16 is n0 // 16."""
    return sympy.Symbol(f"{symbol.name}_{facts.divisor(symbol.name)}", integer=True, positive=symbol.is_positive)


def with_facts(e: sympy.Expr, facts: Facts) -> sympy.Expr:
    """`e` with exact integers as numbers and divisible ones as the divisor times the quotient."""
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for s in e.free_symbols:
        if s.name in facts.values:
            mapping[s] = sympy.Integer(facts.values[s.name])
        elif (by := facts.divisor(s.name)) > 1:
            mapping[s] = by * quotient(s, facts)
    return divisions.simplify(sizes.substitute(e, mapping), {}) if mapping else e


# from a config -------------------------------------------------------------------------------------------------------


def tile_of(nest: Nest, schedule: GpuSchedule, facts: Facts) -> Tile:
    """The layout of `schedule`, by its blocks x, y, z, r and r1, each 1 by default."""
    block, blocks = schedule.blocks.points, schedule.blocks
    if nest.form is Form.POINTWISE:
        dims = [Dim(name.upper(), (axis,), block(name)) for name, axis in zip("xyz", tiled_axes(nest), strict=False)]
        rest = tuple(Dim(f"P{k}", (a,), 1) for k, a in enumerate(other_axes(nest)))
        return Tile(nest, facts, rest + tuple(reversed(dims)), ())
    reduced = list(nest.inner) + ([nest.vec] if nest.form is Form.ROW else [])
    together = schedule.splits if schedule.share is Share.CLUSTER else blocks.parts or 0
    names = [("R", block("r")), ("R1", block("r1"))] + [(f"R{k}", 1) for k in range(2, len(reduced))]
    inner = [Dim(name, (a,), n, True, n * together) for (name, n), a in zip(names, reversed(reduced), strict=False)]
    if nest.form is Form.ROW:
        rows = (Dim("X", nest.outer, block("x")),) if nest.outer else ()
        return Tile(nest, facts, rows, tuple(reversed(inner)))
    outer = (Dim("O", nest.outer, 1),) if nest.outer else ()
    return Tile(nest, facts, (*outer, Dim("X", (nest.vec,), block("x"))), tuple(reversed(inner)))


def tiled_axes(nest: Nest) -> tuple[Axis, ...]:
    """The axes of a pointwise loop that blocks may cover: the vector axis, then those with the best memory access."""
    rest = [a for a in nest.loop.axes if a is not nest.vec]
    rest.sort(key=lambda a: (-_contiguous(nest, a), -nest.loop.axes.index(a)))
    return (nest.vec, *rest[:2])


def _contiguous(nest: Nest, axis: Axis) -> int:
    """Number of accesses with stride 1 along `axis`."""
    indices = [n.index for n in expr.loads(*nest.loop.roots)] + [s.index for s in nest.loop.stores]
    return sum(sizes.coefficient(i, axis.symbol) == 1 for i in indices)


def other_axes(nest: Nest) -> tuple[Axis, ...]:
    """The loop's parallel axes that no dimension of the tile covers."""
    tiled = tiled_axes(nest)
    return tuple(a for a in nest.loop.axes if a not in tiled)
