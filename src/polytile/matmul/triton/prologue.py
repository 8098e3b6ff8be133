"""How an operand's tiles are produced in the loop over k: loaded through advancing pointers, or computed by the operand's
prologue.

Both are a Feed: lines before the loop, lines inside that leave the tile in a variable, and lines at the end of the body. A
computed tile is zero past the end of K, where its loads are masked: the other operand may hold anything there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import sympy
from torch.utils._sympy.functions import FloorDiv

from polytile.codegen.triton import text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.tile import Dim, Tile
from polytile.ir import expr, sizes
from polytile.matmul.triton.operands import Operand, advance, even_k, load, pointer_lines, rows_line, widened
from polytile.matmul.triton.packed_words import Words, even_words, order, reads_words
from polytile.matmul.triton.unit import Unit
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Form, Nest


class Feed(Protocol):
    """One operand in a loop over `k`. If `number` is the text of a single row of A, the tile is a vector along k."""

    def before(self) -> Iterable[str]: ...
    def inside(self, name: str, number: str = "") -> Iterable[str]: ...
    def after(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class Loaded:
    """An operand in memory, read from the position `start` along k."""

    unit: Unit
    operand: Operand
    start: str
    single: bool

    def before(self) -> Iterable[str]:
        if not self.single:
            unit, of_group = self.unit, self.unit.part_of_rows and self.operand.size == "M"
            lines = [*rows_line(self.operand, unit.facts, unit.facts.wide, of_group), *pointer_lines(self.operand, self.start)]
            return [*lines, self._inside_line()] if self._few else lines
        base = f"A + {self.operand.along('b', 'item')}" if self.operand.batched else "A"
        return [f"ptr_A = {base} + {self.operand.along('k', 'ks')}"]

    def inside(self, name: str, number: str = "") -> Iterable[str]:
        unit, operand = self.unit, self.operand
        even = even_k(unit.constants["BLOCK_K"], unit.facts, operand.depth) and not unit.part_of_k
        even = even or (reads_words(unit) and even_words(unit))
        left = "end - k" if unit.part_of_k else f"{unit.number(operand.depth)} - k"
        if not self.single:
            inside = f"inside_{operand.name}" if self._few else ""
            return [f"{name} = {widened(unit.kernel, operand, load(operand, even, left, inside))}"]
        at = f"ptr_A + {operand.along('m', number)}" if number != "0" else "ptr_A"
        mask = "" if even else f", mask=ks < {left}, other={operand.zero}"
        return [f"{name} = {widened(unit.kernel, operand, f'tl.load({at}{mask})')}"]

    def after(self) -> Iterable[str]:
        return [advance(self.operand)]

    @property
    def _few(self) -> bool:
        """Whether there may be far fewer rows than a tile has. If all programs reread wrapped rows at once, they contend for the
        few L2 cache slices that hold them: 1×4096×4096 took 11.6 µs instead of 8.5 on an H100."""
        return self.unit.swapped and self.operand.size == "M"

    def _inside_line(self) -> str:
        """The mask of the existing rows of A."""
        block = self.operand.block
        size = "count" if self.unit.part_of_rows else self.unit.number(self.operand.size)
        return f"inside_{self.operand.name} = at_m * {block} + tl.arange(0, {block}) < {size}"


@dataclass(frozen=True)
class OperandTile(Tile):
    """A tile of an operand. Rows past the end wrap around, so only k may need a mask."""

    along_k: str = ""
    even_along_k: bool = False

    def even(self, dim: Dim) -> bool:
        return self.even_along_k or dim.name != self.along_k


class Computed:
    """An operand that its prologue computes. Parts that do not depend on k are computed before the loop. Parts that depend on k
    only by the group of neighbours that a block is in, such as a weight's scales, are computed once for a block."""

    def __init__(self, unit: Unit, operand: Operand, prologue: LoopKernel, single: bool) -> None:
        self.unit, self.operand, self.single = unit, operand, single
        self.pieces = len(prologue.loop.stores)
        """Elements along k that one point of the prologue computes."""
        self.groups = self._groups(prologue)
        """The symbols of the groups that a block is in, by the number of points in one."""
        self.prologue = self._by_groups(prologue)
        self.tile = self._tile()
        self.body, self.known = Body(prologue, self.tile, unit.facts, f"{operand.name.lower()}_"), Scope()
        self.row, self.k = (next(d for d in self.tile.parallel if d.name == n) for n in (operand.block, self.tile.along_k))

    def before(self) -> Iterable[str]:
        batch = self.prologue.loop.axes[0].symbol
        yield f"{batch} = {'item' if self.unit.kernel.spec.batched else '0'}"
        if self.single:
            return
        yield from rows_line(self.operand, self.unit.facts, self.unit.facts.wide)
        yield f"{self.row.variable} = rows_{self.operand.name}{self.tile.along(self.row)}"
        for node in self.tile.nest.nodes:
            if self.k not in self.body.dims(node) and not expr.free_symbols(node) & set(self.groups.values()):
                self.body.emit(node, self.known)
        yield from self.known.lines

    def inside(self, name: str, number: str = "") -> Iterable[str]:
        unit, k, scope = self.unit, self.k, self.known.inner()
        if self.single:
            yield f"{self.row.variable} = {number}"
        places = "(k + ks)" if self.pieces == 1 else f"(k // {self.pieces} + tl.arange(0, {k.name}))"
        yield f"{k.variable} = {places}{self.tile.along(k)}"
        for points, symbol in self.groups.items():
            yield f"{symbol} = {'(k + tl.full([], 0, tl.int64))' if unit.facts.wide else 'k'} // {points * self.pieces}"
        even = self.tile.even(k)
        if not even:
            yield f"{k.mask} = {k.variable} < {unit.number('K')}" + (f" // {self.pieces}" if self.pieces > 1 else "")
        blocks = [self.body.full(store.value, self.tile.all_dims, scope) for store in self.prologue.loop.stores]
        yield from scope.lines
        unit.quotients |= self.body.quotients
        dtype = text.value_type(self.prologue.tensors[-1].dtype)
        parts = [block if even else f"tl.where({k.mask}, {block}, 0.0)" for block in blocks]
        yield f"{name} = {self._joined([f'({part}).to({dtype})' for part in parts])}"
        converted = widened(unit.kernel, self.operand, name)
        if converted != name:
            yield f"{name} = {converted}"

    def _groups(self, prologue: LoopKernel) -> dict[int, sympy.Symbol]:
        """A symbol for each number of points by which the prologue divides k, where blocks begin at multiples of their size and
        this is a multiple of it."""
        k, block = self._axis_k(prologue), self.unit.constants["BLOCK_K"]
        indices = [index for node in expr.walk(*prologue.loop.roots) for index in node.indices]
        divisions = {part for index in indices for part in index.atoms(FloorDiv) if part.args[0] == k}
        points = sorted(int(part.args[1]) for part in divisions if part.args[1].is_Integer)
        return {n: sizes.axis(f"{k}_by_{n}") for n in points if n * self.pieces % block == 0}

    def _by_groups(self, prologue: LoopKernel) -> LoopKernel:
        """The prologue with the symbols of `groups` for these divisions."""
        k = self._axis_k(prologue)
        known = {FloorDiv(k, sympy.Integer(n)): symbol for n, symbol in self.groups.items()}
        loop = prologue.loop.map_roots(lambda roots: expr.map_indices(roots, lambda index: index.xreplace(known)))
        return replace(prologue, loop=loop)

    def _axis_k(self, prologue: LoopKernel) -> sympy.Symbol:
        return prologue.loop.axes[2 if self.operand.name == "A" else 1].symbol

    def _tile(self) -> OperandTile:
        """The tile of one step, with `pieces` elements per point."""
        unit, loop, single = self.unit, self.prologue.loop, 1 if self.single else self.unit.constants[self.operand.block]
        whole = unit.constants["BLOCK_K"]
        along_k = "BLOCK_K" if self.pieces == 1 else f"BLOCK_K // {self.pieces}"
        names = {"b": ("P0", 1), "k": (along_k, whole // self.pieces), self.operand.rows: (self.operand.block, single)}
        order = ("b", "m", "k") if self.operand.name == "A" else ("b", "k", "n")
        dims = tuple(Dim(names[axis][0], (a,), names[axis][1]) for axis, a in zip(order, loop.axes, strict=True))
        nest = Nest(loop, Form.POINTWISE, loop.axes[2], loop.axes[:2], ())
        return OperandTile(nest, unit.facts, dims, (), along_k, even_k(whole, unit.facts))

    def _joined(self, blocks: list[str]) -> str:
        """Interleave tiles of elements 0, 1, … of each point along k."""
        if len(blocks) == 1:
            return blocks[0]
        pair = f"tl.join({', '.join(blocks)})"
        if self.single:
            return f"tl.reshape({pair}, [BLOCK_K])"
        if self.operand.name == "A":
            return f"tl.reshape({pair}, [{self.operand.block}, BLOCK_K])"
        return f"tl.reshape(tl.permute({pair}, (0, 2, 1)), [BLOCK_K, {self.operand.block}])"

    def after(self) -> Iterable[str]:
        return ()


def positions(unit: Unit) -> list[str]:
    """Lines that define `ks`: where the elements of a block along k are in it."""
    lines = order(unit.kernel.int4) if unit.kernel.int4 is not None and reads_words(unit) else ["ks = tl.arange(0, BLOCK_K)"]
    return [*lines, "ks = ks.to(tl.int64)"] if unit.facts.wide else lines


def feed(unit: Unit, operand: Operand, start: str = "0", single: bool = False) -> Feed:
    """The feed of this operand; with `single`, row by row."""
    if operand.name == "B" and reads_words(unit):
        return Words(unit, operand, start)
    operand_prologue = unit.kernel.prologues[0 if operand.size == "M" else 1]
    return Loaded(unit, operand, start, single) if operand_prologue is None else Computed(unit, operand, operand_prologue, single)
