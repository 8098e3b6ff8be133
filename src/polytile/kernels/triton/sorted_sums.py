"""The schedule of sums by an index (scattered.py) that first brings the points in the order of their rows, by a counting sort:
no atomics, no zeros that are stored before, and sums in an order that is the same every time.

    launch 0   program (b, c) has chunk c of the points, `many` of them: those that fall on its `rows` rows it lists, row by row,
               in their order; of each row it keeps where the chunk's list of it ends
    launch 1   a program has a block of columns of one row: it adds up what the lists of all chunks (at most `chunks`) say, `y` points at once, and
               stores the sum, zeros where there is none

Scratch memory: 0 has the ends, chunk by chunk; 1 the lists; 2 and 3 those points of a program that it has still to sort, and their
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from polytile.ir import expr, sizes
from polytile.ir.program import Axis, Loop, Store
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.facts import Facts
from polytile.kernels.nest import Nest, nest_of
from polytile.kernels.triton import text
from polytile.kernels.triton.body import Scope
from polytile.kernels.triton.kernel import Launch, Scratch, TritonKernel
from polytile.kernels.triton.ops import convert
from polytile.kernels.triton.scattered import ROW, Table, table_of
from polytile.kernels.triton.tile import Dim, Tile, blocks
from polytile.kernels.triton.unit import ROWS, Unit
from polytile.problem import Config

ENDS, ORDER, FOUND, OWN = range(4)
SORTING = 8
LISTED = 4096
"""Warps of a program that sorts, and elements of its block of rows and the points found."""


def sorted_sums(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launches of `kernel` under a config with `rows`, `many` and `chunks`."""
    table = table_of(kernel.loop)
    assert table is not None
    kind = torch.int64 if facts.wide else torch.int32
    ends, points = sympy.expand(table.rows * int(config["chunks"])), table.points.size
    scratch = (Scratch(kind, ends), Scratch(kind, points), Scratch(kind, points), Scratch(torch.int32, points))
    sorting, adding = (made(kernel, nest, config, facts, overlaps, table).made() for made in (Sorting, Adding))
    return TritonKernel((sorting, adding), scratch)


class _Sorted:
    """A launch in the making."""

    def __init__(self, unit: Unit, config: Config, table: Table) -> None:
        self.unit, self.table, self.out = unit, table, unit.out
        self.wide = ".to(tl.int64)" if unit.facts.wide else ""
        self.kind = torch.int64 if unit.facts.wide else torch.int32
        self.points, self.rows = unit.body.index(table.points.size), unit.body.index(table.rows)
        unit.constants["MANY"] = int(config["many"])

    def memory(self, number: int) -> str:
        return self.unit.scratch(number, torch.int32 if number == OWN else self.kind)


class Sorting(_Sorted):
    """Launch 0: `unit` has a block of points."""

    def __init__(
        self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool, table: Table
    ) -> None:
        many = Axis(sizes.axis("many"), table.points.size)
        own = tuple(root for root in table.store.roots if root is not table.store.value)
        self.asked = expr.substitute(own, {table.points.symbol: many.symbol})
        loop = Loop("sort", (many,), (), tuple(Store("asked", many.symbol, root) for root in self.asked), kernel.loop.origins)
        tensors = tuple(tensor for tensor in kernel.tensors if tensor.name in loop.reads())
        alone = LoopKernel(loop, tensors, kernel.symbols)
        how = Config.of(variant="plain", x=int(config["many"]), warps=SORTING)
        unit = Unit(alone, nest_of(loop), how, facts, overlaps)
        self.many = Dim("MANY", (many,), int(config["many"]))
        unit.tile = unit.body.tile = Tile(unit.nest, facts, (self.many,), ())
        unit.constants = {}
        super().__init__(unit, config, table)
        unit.constants |= {"ROWS": int(config["rows"]), "LISTED": max(16, LISTED // int(config["rows"]))}

    def made(self) -> Launch:
        unit, out = self.unit, self.out
        out.extend([
            f"row = tl.program_id(0){self.wide} * ROWS",
            "rows = tl.arange(0, ROWS)[None, :]",
            f"first = tl.program_id(1){self.wide} * MANY",
            f"many = first + tl.arange(0, MANY){self.wide}",
        ])  # fmt: skip
        unit.wait()
        self._found()
        self._counted()
        self._listed()
        buckets = blocks(self.table.rows, unit.constants["ROWS"])
        return unit.launch(grid=(buckets, blocks(self.table.points.size, self.many.block), sizes.ONE))

    def _found(self) -> None:
        """Keeps the points that fall on the program's rows, after the places for those of all rows before."""
        unit, out, scope = self.unit, self.out, Scope()
        inside = []
        if not unit.tile.even(self.many):
            scope.lines.append(f"{self.many.mask} = many < {self.points}")
            inside.append(self.many.mask)
        fallen, *others = [unit.body.emit(root, scope) for root in self.asked]
        inside += [*others, *unit.body.guards(self.asked[:1])]
        scope.lines.append(f"own = {fallen}{self.wide or '.to(tl.int32)'} - row")
        unit.flush(scope)
        out.extend([
            f"start = first + tl.sum(({' & '.join(['(own < 0)', *inside])}).to(tl.int32), 0)",
            f"mine = {' & '.join(['(own >= 0) & (own < ROWS)', *inside])}",
            "place = start + tl.associative_scan(mine.to(tl.int32), 0, pt_add) - 1",
            f"tl.store({self.memory(FOUND)} + place, many, mask=mine)",
            f"tl.store({self.memory(OWN)} + place, own.to(tl.int32), mask=mine)",
            "count = tl.sum(mine.to(tl.int32), 0)",
            "tl.debug_barrier()",
        ])  # fmt: skip

    def _going(self) -> None:
        """The next of the points found, as one of each row's."""
        self.out.extend([
            "next = at + tl.arange(0, LISTED)",
            f"of = tl.load({self.memory(OWN)} + start + next, mask=next < count, other=ROWS)",
            "falls = of[:, None] == rows",
        ])  # fmt: skip

    def _counted(self) -> None:
        """Where each row's part of the list ends."""
        out = self.out
        out.line("counts = tl.zeros([1, ROWS], tl.int32)")
        with out.indented("for at in range(0, count, LISTED):"):
            self._going()
            out.line("counts += tl.sum(falls.to(tl.int32), 0, keep_dims=True)")
        out.line("end = start + tl.associative_scan(counts, 1, pt_add)")
        out.line(f"tl.store({self.memory(ENDS)} + (tl.program_id(1){self.wide} * ({self.rows}) + row + rows), end, "
                 f"mask=row + rows < {self.rows})")  # fmt: skip

    def _listed(self) -> None:
        out = self.out
        out.line("begin = end - counts")
        with out.indented("for at in range(0, count, LISTED):"):
            self._going()
            out.line(f"point = tl.load({self.memory(FOUND)} + start + next, mask=next < count, other=0)")
            out.line("to = begin + tl.associative_scan(falls.to(tl.int32), 0, pt_add) - 1")
            out.line(f"tl.store({self.memory(ORDER)} + to, point[:, None] + tl.zeros([1, ROWS], tl.int32), mask=falls)")
            out.line("begin += tl.sum(falls.to(tl.int32), 0, keep_dims=True)")


class Adding(_Sorted):
    """Launch 1: `unit` has a block of columns, and Y of the points that the lists of a row say, at places that they say."""

    def __init__(
        self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool, table: Table
    ) -> None:
        unit = Unit(kernel, nest, config, facts, overlaps)
        listed = Axis(table.points.symbol, sizes.axis("listed"))  # of whose number nothing is known
        self.listed, self.columns = Dim("Y", (listed,), int(config["y"])), Dim("X", (table.along,), int(config["x"]))
        unit.tile = unit.body.tile = Tile(nest, facts, (self.listed, self.columns), ())
        unit.constants = {dim.name: dim.block for dim in unit.tile.dims}
        super().__init__(unit, config, table)
        unit.constants["CHUNKS"] = int(config["chunks"])

    def made(self) -> Launch:
        unit, table, out = self.unit, self.table, self.out
        out.line(f"{ROW} = (tl.program_id(1) + tl.program_id(2) * {ROWS}){self.wide}")
        with out.indented(f"if {ROW} >= {self.rows}:"):
            out.line("return")
        out.line(f"{self.columns.name.lower()}_at = tl.program_id(0){self.wide}")
        unit.parallel(self.columns)
        unit.wait()
        self._lists()
        out.line(f"total = tl.zeros({unit.tile.shape(unit.tile.all_dims)}, {text.value_type(table.store.value.dtype)})")
        with out.indented("for at in range(0, count, Y):"):
            self._block()
        self._stored()
        count = blocks(table.along.size, self.columns.block)
        planes = blocks(table.rows, ROWS)
        return unit.launch(grid=(count, sympy.Min(table.rows, sympy.Integer(ROWS)), planes))

    def _lists(self) -> None:
        """Where in the lists of the chunks the row's points are: `upto` so many of them are those of a chunk and the ones before."""
        ends = self.memory(ENDS)
        self.out.extend([
            f"chunks = tl.arange(0, CHUNKS)[None, :]{self.wide}",
            f"there = chunks * MANY < {self.points}",
            f"ends = {ends} + (chunks * ({self.rows}) + {ROW})",
            f"begin = tl.where({ROW} > 0, tl.load(ends - 1, mask=there & ({ROW} > 0), other=0), chunks * MANY)",
            "counts = tl.where(there, tl.load(ends, mask=there, other=0) - begin, 0)",
            "upto = tl.associative_scan(counts, 1, pt_add)",
            "count = tl.sum(tl.ravel(counts), 0)",
        ])  # fmt: skip

    def _block(self) -> None:
        """Adds the next of the row's points."""
        unit, points, inner = self.unit, self.listed.variable, self.unit.scope.inner()
        inner.lines += [
            "next = at + tl.arange(0, Y)[:, None]",
            f"{self.listed.mask} = next < count",
            "within = (next < upto) & (next >= upto - counts)",
            "place = next + tl.sum(tl.where(within, begin - (upto - counts), 0), 1, keep_dims=True)",
            f"{points} = tl.load({self.memory(ORDER)} + place, mask={self.listed.mask}, other=0)",
        ]
        value = unit.body.full(self.table.store.value, unit.tile.all_dims, inner)
        inner.lines.append(f"total += tl.where({self.listed.mask}, {value}, 0.0)")
        unit.flush(inner)

    def _stored(self) -> None:
        unit, store = self.unit, self.table.store
        value = convert("total", store.value.dtype, unit.kernel.storage(store.buffer))
        place = unit.body.index(store.index.xreplace({expr.indirect_symbol(0): sizes.axis(ROW)}))
        masks: Sequence[str] = unit.tile.masks(frozenset({self.columns}))
        unit.out.line("total = tl.sum(total, 0, keep_dims=True)")
        unit.out.line(f"tl.store({store.buffer} + ({place}), {value}{', mask=' + masks[0] if masks else ''})")


__all__ = ["sorted_sums"]
