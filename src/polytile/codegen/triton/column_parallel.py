"""The column-parallel schedule of a row loop with column reduction, for few and long rows: each program has a block of
columns with all rows, and so the complete sums of its columns.

    launch 0   from the last row to the first: column sums, and the block's partial results of each row's reductions
    launch 1   the finalise launch: combines each row's partial results; an ordinary loop
    launch 2   every point, given the rows' reductions: an ordinary loop, which starts with the rows read last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.column_reduction import add, begin, column_sums, finish
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.scratch import on_scratch
from polytile.codegen.triton.text import masked
from polytile.codegen.triton.tile import blocks
from polytile.codegen.triton.unit import Unit
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.schedule.canonical import LoopKernel, TensorArg
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.catalogue import looped, pointwise
from polytile.schedule.gpu.scheduled import ScheduledLoop

FINALISE = looped(x=1, r=2048, warps=8)
POINTS = pointwise(x=1024, y=1, warps=4)


def column_parallel(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The kernel of a loop under the schedule `column_parallel`. `overlaps`: see Target.overlaps."""
    return ColumnParallel(loop, facts, overlaps).build()


class ColumnParallel:
    """Builds the kernel. Scratch memory 2·k holds the partial results of reduction k, row by row, and 2·k + 1 its results."""

    def __init__(self, loop: ScheduledLoop, facts: Facts, overlaps: bool) -> None:
        kernel, nest, schedule = loop.kernel, loop.nest, loop.schedule
        self.kernel, self.nest, self.facts, self.overlaps = kernel, nest, facts, overlaps
        self.unit = Unit(kernel, nest, schedule, facts, overlaps)
        self.stages = schedule.stages
        (self.columns,) = self.unit.tile.reduced
        self.count = blocks(self.columns.size, self.columns.block)
        self.sums, self.rows = column_sums(kernel.loop), sympy.expand(self.unit.rows)

    def build(self) -> TritonKernel:
        scratch = []
        for reduce in self.nest.reduces:
            scratch += [Scratch(reduce.dtype, sympy.expand(self.rows * self.count)), Scratch(reduce.dtype, self.rows)]
        return TritonKernel((self._columns(), self._finalise(), self._points()), tuple(scratch))

    # launch 0 --------------------------------------------------------------------------------------------------------

    def _columns(self) -> Launch:
        unit = self.unit
        unit.out.line("stripe = tl.program_id(0)" + (".to(tl.int64)" if self.facts.wide else ""))
        unit.along(self.columns, f"stripe * {self.columns.name}")
        unit.wait()
        begin(unit, self.sums)
        down = unit.body.index(sizes.product(unit.tile.tiles))
        ahead = f", num_stages={self.stages}" if self.stages > 1 else ""
        with unit.out.indented(f"for done in tl.range(0, {down}{ahead}):"):
            for dim in unit.tile.parallel:
                number = f"{down} - 1 - done"
                unit.out.line(f"{dim.name.lower()}_at = " + (f"tl.cast({number}, tl.int64)" if self.facts.wide else number))
                unit.parallel(dim)
            inner = unit.scope.inner()
            unit.fetch(self.nest.roots_in(0), inner)
            for k, reduce in enumerate(self.nest.reduces):
                self._store_partial(k, Reduction(unit.body, reduce), inner)
            add(unit, self.sums, inner)
            unit.flush(inner)
        finish(unit, self.sums)
        return unit.launch(grid=(self.count, sizes.ONE, sizes.ONE))

    def _store_partial(self, k: int, reduction: Reduction, scope: Scope) -> None:
        """Stores the block's partial result of a reduction of the current rows."""
        unit = self.unit
        (part,) = reduction.running("part")
        scope.lines.append(f"{part} = {reduction.across(reduction.values(scope))}")
        mask = masked(unit.tile.masks(unit.tile.parallel_dims))
        place = f"({unit.row()}) * tl.num_programs(0) + stripe"
        scope.lines.append(f"tl.store({unit.scratch(2 * k, reduction.dtype)} + ({place}), {part}{mask})")

    # launches 1 and 2 ------------------------------------------------------------------------------------------------

    def _finalise(self) -> Launch:
        row, block = sizes.axis("p0"), sizes.axis("r0")
        stores, tensors = [], []
        numbers: dict[str, int] = {}
        for k, reduce in enumerate(self.nest.reduces):
            part, whole = (f"scratch{number}" for number in (2 * k, 2 * k + 1))
            read = expr.load(reduce.dtype, part, row * self.count + block)
            stores.append(Store(whole, row, expr.reduce(reduce.kind, reduce.dtype, read)))
            tensors += [TensorArg(part, reduce.dtype, "in"), TensorArg(whole, reduce.dtype, "out")]
            numbers |= {part: 2 * k, whole: 2 * k + 1}
        loop = Loop("together", (Axis(row, self.rows),), (Axis(block, self.count),), tuple(stores), self.nest.loop.origins)
        return on_scratch(self._kernel_of(loop, tensors), FINALISE, self.facts, self.overlaps, numbers)

    def _points(self) -> Launch:
        loop = self.nest.loop
        row = sizes.ZERO
        for axis in loop.axes:
            row = row * axis.size + axis.symbol
        names = {id(reduce): f"scratch{2 * k + 1}" for k, reduce in enumerate(self.nest.reduces)}

        def known(node: Node, children: tuple[Node, ...]) -> Node:
            if id(node) in names:
                return expr.load(node.dtype, names[id(node)], sympy.expand(row))
            return expr.rebuild(node, children)

        others = replace(loop, stores=tuple(store for store in loop.stores if not store.is_segment_sum))
        points = others.map_roots(lambda roots: expr.rewrite(roots, known))
        points = replace(points, axes=loop.axes + loop.reduced, reduced=())
        used = points.reads() | points.writes()
        tensors = [tensor for tensor in self.kernel.tensors if tensor.name in used]
        tensors += [TensorArg(names[id(r)], r.dtype, "in") for r in self.nest.reduces if names[id(r)] in used]
        numbers = {name: 2 * k + 1 for k, name in enumerate(names.values())}
        return on_scratch(self._kernel_of(points, tensors), POINTS, self.facts, self.overlaps, numbers)

    def _kernel_of(self, loop: Loop, tensors: Sequence[TensorArg]) -> LoopKernel:
        return LoopKernel(loop, tuple(tensors), self.kernel.symbols)
