"""Segment sums (segment_sums.py) whose programs search the indices for the points of a row and add them up in order.

first occurrence   launch 0 sets the table to zero; in launch 1 each program has a point: the first point of a row adds
                   up the whole row and stores the sum; a program that finds an earlier point of its row returns
owner computes     each program has a row and stores its sum, or zeros for a row without points; a single launch

A program examines `many` indices at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from polytile.codegen.triton import text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.kernel import Launch, TritonKernel
from polytile.codegen.triton.segment_sums import ROW, begin_program, points_of, table_of, zeroed_table
from polytile.codegen.triton.tile import Dim, Tile, blocks
from polytile.codegen.triton.unit import ROWS, Unit
from polytile.ir import sizes
from polytile.ir.expr import Node
from polytile.ir.loop import Axis
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.nest import Nest, nest_of

POINT = "point"


def first_occurrence(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """A launch that stores zeros, and one that stores the sums."""
    return TritonKernel((zeroed_table(kernel, facts, overlaps), FirstOccurrence(kernel, nest, config, facts, overlaps).build()))


def owner_computes(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """One launch that stores the sums of all rows."""
    return TritonKernel((OwnerComputes(kernel, nest, config, facts, overlaps).build(),))


class _IndexSearch:
    """Builds a launch. `unit` has blocks of columns and one point at a time, `ahead` a block of points."""

    def __init__(self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> None:
        table = table_of(kernel.loop)
        assert table is not None
        self.unit, self.table = Unit(kernel, nest, points_of(config), facts, overlaps), table
        self.wide = ".to(tl.int64)" if facts.wide else ""
        (self.columns,) = (dim for dim in self.unit.tile.parallel if table.along in dim.axes)
        self.unit.constants["POINTS"] = int(config["many"])
        self.points = self.unit.body.index(table.points.size)
        points = Axis(sizes.axis("points"), table.points.size)
        indices = table.index_loop("search", points, kernel.loop.origins)
        self.roots, own = indices.roots, nest_of(indices)
        self.searched = Dim("POINTS", (points,), int(config["many"]))
        self.ahead = Body(kernel, Tile(replace(own, cutting=False), facts, (self.searched,), ()), facts, prefix="m")

    def _add_points(self, condition: str) -> None:
        """Adds up the row's points, block after block of indices, while `condition` holds."""
        unit, out = self.unit, self.unit.out
        out.line(f"total = tl.full({unit.tile.shape(unit.tile.all_dims)}, 0.0, {text.value_type(self.table.store.value.dtype)})")
        out.line("first = 0")
        with out.indented(f"while {condition}(first < {self.points}):"):
            self._block(condition)
            out.line("first += POINTS")

    def _block(self, condition: str) -> None:
        """Adds the row's points in the current block of indices. The search for the next point overlaps with loading
        the current one."""
        unit, scope, nearest = self.unit, Scope(), f"tl.min(tl.where({{}}, points, {self.points}), 0)"
        scope.lines.append(f"points = first + tl.arange(0, POINTS){self.wide}")
        scope.lines.append(f"{self.searched.mask} = points < {self.points}")
        row, *conditions = self._row_of_point(self.ahead, self.roots, scope)
        scope.lines.append(f"same = {' & '.join([f'({row} == {ROW})', *conditions, self.searched.mask])}")
        scope.lines.append(f"match = {nearest.format('same')}")
        if condition:
            scope.lines.append(f"is_first = match >= {POINT}")
        unit.flush(scope)
        with unit.out.indented(f"while {condition}(match < {self.points}):"):
            inner = unit.scope.inner()
            inner.lines.append(f"{self.table.points.symbol} = match")
            value = unit.body.full(self.table.store.value, unit.tile.all_dims, inner)
            inner.lines.append(f"match = {nearest.format('same & (points > match)')}")
            inner.lines.append(f"total += {value}")
            unit.flush(inner)

    def _row_of_point(self, body: Body, roots: Sequence[Node], scope: Scope) -> list[str]:
        """The row of a point, and the conditions under which the point counts. `roots` are its index and mask."""
        names = [body.emit(node, scope) for node in roots]
        return [*names, *body.guards(roots[:1])]

    def _store(self) -> None:
        self.table.store_total(self.unit, self.unit.tile.masks(self.unit.tile.all_dims))

    def _launch(self, each: sympy.Expr) -> Launch:
        """The launch of programs that each have one of `each` and a block of columns."""
        unit = self.unit
        unit.body.error |= self.ahead.error
        unit.body.quotients |= self.ahead.quotients
        count = blocks(self.table.along.size, self.columns.block)
        return unit.launch(grid=(count, sympy.Min(each, sympy.Integer(ROWS)), blocks(each, ROWS)))


class FirstOccurrence(_IndexSearch):
    """Launch 1 of `first_occurrence`."""

    def build(self) -> Launch:
        points, out = self.table.points.size, self.unit.out
        begin_program(self.unit, POINT, self.points, self.columns)
        self._own_row()
        out.line(f"is_first = {POINT} >= 0")
        self._add_points("is_first & ")
        with out.indented("if is_first:"):
            self._store()
        return self._launch(points)

    def _own_row(self) -> None:
        """Emits ROW, the row of the program's point; a program whose point has no row returns."""
        unit, scope = self.unit, Scope()
        scope.lines.append(f"{self.table.points.symbol} = {POINT}")
        row, *conditions = self._row_of_point(unit.body, self.table.own, scope)
        scope.lines.append(f"{ROW} = {row}")
        unit.flush(scope)
        if conditions:
            with unit.out.indented(f"if ({' & '.join(conditions)}) == 0:"):
                unit.out.line("return")


class OwnerComputes(_IndexSearch):
    """The launch of `owner_computes`."""

    def build(self) -> Launch:
        begin_program(self.unit, ROW, self.unit.body.index(self.table.rows), self.columns)
        self._add_points("")
        self._store()
        return self._launch(self.table.rows)
