"""The schedule of a row loop with column reduction (stores of mode SEGMENT_SUM): each of `programs` programs holds
whole rows in registers, as `persistent` does, block after block, and accumulates the sums of all its rows.

    launch 0   program p processes blocks p, p + programs, ... and leaves its sums in scratch memory, one row per sum
    launch 1   the finalise launch, an ordinary loop, adds up these rows

A single program stores its sums itself. Values that are the same for all rows, such as a weight, are loaded once per
program.

Rows too long for registers beside their sums are processed in `parts` blocks of columns, once per pass; the cache holds
what a pass reads again. The sums of each part have separate names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from polytile.codegen.triton import text
from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.ops import convert
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.schedules import reads_again, row_inputs, stored, whole_rows
from polytile.codegen.triton.scratch import on_scratch
from polytile.codegen.triton.unit import Unit
from polytile.ir import expr, sizes
from polytile.ir.expr import Load
from polytile.ir.loop import Axis, Loop, Store
from polytile.schedule.answers import Hold
from polytile.schedule.canonical import LoopKernel, TensorArg
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.catalogue import looped
from polytile.schedule.gpu.scheduled import ScheduledLoop, goes_back

PARTIAL = "scratch{}"
FINALISE_PROGRAMS, FINALISE_POINTS, NARROWEST, WIDEST = 128, 8192, 8, 32
"""Programs and points of a block of the finalise launch, and the limits of a block's columns. If one block covers all
rows of scratch memory (528 programs leave that many), it waits once."""


@dataclass(frozen=True)
class ColumnSum:
    """One store of sums: its running value, of one part of the columns if there are several, and the number of its
    scratch memory."""

    store: Store
    number: int
    part: str = ""

    @property
    def running(self) -> str:
        return f"sum{self.number}{self.part}"


def column_reduction(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launches of `loop` in which at most `programs` programs share all rows."""
    kind = BlockedColumnReduction if loop.schedule.hold is Hold.MEMORY else ColumnReduction
    return kind(loop, facts, overlaps).build()


class ColumnReduction:
    """Builds the kernel. `number` is the index of a program among the `count` that share the rows, at most `programs`."""

    number, count = "tl.program_id(0)", "tl.num_programs(0)"

    def __init__(self, loop: ScheduledLoop, facts: Facts, overlaps: bool) -> None:
        kernel, schedule = self.kernel, self.schedule = loop.kernel, loop.schedule
        self.facts, self.overlaps, self.alone = facts, overlaps, len(loop.launches) == 1
        self.unit = Unit(kernel, loop.nest, schedule, facts, overlaps)
        self.sums = column_sums(kernel.loop)
        (self.columns,) = self.unit.tile.reduced
        self.blocks = sizes.product(self.unit.tile.tiles)
        self.most = (schedule.blocks.programs or 1) // schedule.splits
        self.programs: sympy.Expr = sizes.ONE
        if not self.alone:
            self.programs = sympy.Min(sympy.Integer(self.most), self.blocks)

    def build(self) -> TritonKernel:
        first = self.rows()
        if self.alone:
            return TritonKernel((first,))
        scratch = [Scratch(s.store.value.dtype, sympy.expand(self.programs * self.columns.size)) for s in self.sums]
        return TritonKernel((first, self.finalise()), tuple(scratch))

    # launch 0 --------------------------------------------------------------------------------------------------------

    def rows(self) -> Launch:
        unit = self.unit
        unit.wait()
        self._begin()
        with unit.out.indented(f"for block in {self._range()}:"):
            for dim in unit.tile.parallel:
                unit.out.line(f"{dim.name.lower()}_at = " + ("tl.cast(block, tl.int64)" if self.facts.wide else "block"))
                unit.parallel(dim)
            self._block(unit.scope.inner())
        self._end(self.sums)
        return self._launch()

    def _launch(self) -> Launch:
        return self.unit.launch(grid=(self.programs, sizes.ONE, sizes.ONE))

    def _begin(self) -> None:
        """Emits the code before any block of rows."""
        self.unit.resident(self.columns)
        begin(self.unit, self.sums)

    def _block(self, scope: Scope) -> None:
        """Emits the code for a block of rows."""
        whole_rows(self.unit, scope)
        add(self.unit, self.sums, scope)
        self.unit.flush(scope)

    def _end(self, sums: Sequence[ColumnSum]) -> None:
        """Emits the code for sums of the current columns."""
        if self.alone:
            finish(self.unit, sums)
        else:
            self._store_partial(sums)

    def _range(self) -> str:
        ahead = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 else ""
        return f"tl.range({self.number}, {self.unit.body.index(self.blocks)}, {self.count}{ahead})"

    def _store_partial(self, sums: Sequence[ColumnSum]) -> None:
        """Stores a program's sums in scratch memory."""
        unit = self.unit
        mask = _mask(unit)
        for one in sums:
            down(unit, one)
            place = f"{self.number} * ({unit.body.index(self.columns.size)}) + {self.columns.variable}"
            scratch = unit.scratch(one.number, one.store.value.dtype)
            unit.out.line(f"tl.store({scratch} + ({place}), {one.running}{mask})")

    # launch 1 --------------------------------------------------------------------------------------------------------

    def finalise(self) -> Launch:
        """Adds up the programs' sums."""
        kernel = self._finalise_loop()
        x = min(WIDEST, max(NARROWEST, max(self.columns.block, self.columns.whole) // FINALISE_PROGRAMS))
        r = min(1 << (self.most - 1).bit_length(), FINALISE_POINTS // x)
        schedule = looped(x=x, r=r, warps=8)
        numbers = {PARTIAL.format(one.number): one.number for one in self.sums}
        return on_scratch(kernel, schedule, self.facts, self.overlaps, numbers)

    def _finalise_loop(self) -> LoopKernel:
        column, row = sizes.axis("p0"), sizes.axis("r0")
        (along,) = self.columns.axes
        stores, tensors = [], []
        for one in self.sums:
            name, dtype = PARTIAL.format(one.number), one.store.value.dtype
            total = expr.reduce("sum", dtype, expr.load(dtype, name, row * along.size + column))
            stores.append(Store(one.store.buffer, one.store.index.xreplace({along.symbol: column}), total))
            tensors.append(TensorArg(name, dtype, "in"))
        written = {one.store.buffer for one in self.sums}
        tensors += [tensor for tensor in self.kernel.tensors if tensor.name in written]
        axes = (Axis(column, along.size),), (Axis(row, self.programs),)
        loop = Loop(self.kernel.loop.name, *axes, tuple(stores), self.kernel.loop.origins)
        return LoopKernel(loop, tuple(tensors), self.kernel.symbols)


class BlockedColumnReduction(ColumnReduction):
    """The same for rows in parts."""

    @property
    def parts(self) -> int:
        return self.schedule.blocks.parts or 1

    def _begin(self) -> None:
        for part in range(self.parts):
            zero(self.unit, self._sums_of(part))

    def _sums_of(self, part: int) -> list[ColumnSum]:
        return [replace(one, part=f"_{part}") for one in self.sums]

    def _columns(self, part: int) -> None:
        self.unit.along(self.columns, str(part * self.columns.block))

    def _block(self, scope: Scope) -> None:
        unit, nest = self.unit, self.unit.nest
        for k in range(nest.passes + 1):
            unit.body.stores(nest.row_stores(k), scope)
            if k < nest.passes:
                self._pass(k, scope)
        unit.flush(scope)

    def _pass(self, k: int, scope: Scope) -> None:
        """Emits pass k over the parts; every other pass starts from the last one."""
        unit, nest, body = self.unit, self.unit.nest, self.unit.body
        reductions = [Reduction(body, node) for node in nest.reduces_in(k)]
        for node in row_inputs(nest, k):
            body.emit(node, scope)
        for reduction in reductions:
            reduction.start(scope)
        unit.flush(scope)
        again = reads_again(unit, k)
        with body.reading(again, last=bool(k) and not again):
            parts = range(self.parts)
            for part in reversed(parts) if goes_back(nest, k) else parts:
                self._columns(part)
                inner = scope.inner()
                unit.fetch(nest.roots_in(k), inner)
                for reduction in reductions:
                    reduction.update(inner)
                stored(unit, k, inner)
                add(unit, [one for one in self._sums_of(part) if one.store in nest.stores_in(k)], inner)
                unit.flush(inner)
        for reduction in reductions:
            reduction.finish(reduction.running(), scope)

    def _end(self, sums: Sequence[ColumnSum]) -> None:
        for part in range(self.parts):
            self._columns(part)
            super()._end(self._sums_of(part))


# sums of a program ---------------------------------------------------------------------------------------------------


def begin(unit: Unit, sums: Sequence[ColumnSum]) -> None:
    """Loads the values that all rows share, and sets the sums to zero."""
    nest = unit.nest
    rows = {axis.symbol for dim in unit.tile.parallel for axis in dim.axes}
    for node in nest.nodes:
        below = nest.dependence(node)
        if isinstance(node, Load) and not below.axes & rows and not below.reduced:
            unit.body.emit(node, unit.scope)
    unit.flush(unit.scope)
    zero(unit, sums)


def zero(unit: Unit, sums: Sequence[ColumnSum]) -> None:
    """Emits the running sums of columns, which begin at zero."""
    shape = unit.tile.shape(unit.tile.all_dims)
    for one in sums:
        unit.out.line(f"{one.running} = tl.full({shape}, 0.0, {text.value_type(one.store.value.dtype)})")


def add(unit: Unit, sums: Sequence[ColumnSum], scope: Scope) -> None:
    """Adds the current block to the sums."""
    inside = " & ".join(unit.tile.masks(unit.tile.parallel_dims))
    for one in sums:
        value = unit.body.full(one.store.value, unit.tile.all_dims, scope)
        scope.lines.append(f"{one.running} += " + (f"tl.where({inside}, {value}, 0.0)" if inside else value))


def down(unit: Unit, one: ColumnSum) -> None:
    """Adds up the rows of a block."""
    if len(unit.tile.dims) > 1:
        unit.out.line(f"{one.running} = tl.sum({one.running}, 0, keep_dims=True)")


def finish(unit: Unit, sums: Sequence[ColumnSum]) -> None:
    """Stores the sums of all rows in their final places."""
    mask = _mask(unit)
    for one in sums:
        down(unit, one)
        value = convert(one.running, one.store.value.dtype, unit.kernel.storage(one.store.buffer))
        unit.out.line(f"tl.store({one.store.buffer} + ({unit.body.index(one.store.index)}), {value}{mask})")


def _mask(unit: Unit) -> str:
    return text.masked(unit.tile.masks(unit.tile.all_dims - unit.tile.parallel_dims))


def column_sums(loop: Loop) -> list[ColumnSum]:
    """The loop's sums of columns, numbered in the order of their stores."""
    return [ColumnSum(store, k) for k, store in enumerate(store for store in loop.stores if store.is_segment_sum)]
