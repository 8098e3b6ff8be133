"""The schedules of loops that add up rows by an index: stores of mode SUM whose places values decide. What nothing falls on is
zero. Sums are in the type of their terms, and rounded once.

scatter   launch 0 sets the table to zero, launch 1 adds every point to it by atomics; where its type is narrower than that of
          the sums both do so with scratch memory, and launch 2 stores what that holds; one point is simply stored
leaders   launch 0 sets the table to zero; in launch 1 a program has a point: the first point of a row adds up all of the row,
          in their order, and stores the sum

A program of `leaders` looks at `many` indices at once for points of its row. One before its own ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from polytile.errors import LoweringError
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.program import Axis, Loop, Store
from polytile.kernels.canonical import LoopKernel, TensorArg
from polytile.kernels.facts import Facts, index_limit
from polytile.kernels.nest import Nest, nest_of
from polytile.kernels.triton import text
from polytile.kernels.triton.body import Body, Scope
from polytile.kernels.triton.kernel import Launch, Scratch, TritonKernel
from polytile.kernels.triton.ops import convert
from polytile.kernels.triton.scratch import on_scratch
from polytile.kernels.triton.split import masked
from polytile.kernels.triton.tile import Dim, Tile, blocks
from polytile.kernels.triton.unit import ROWS, Unit
from polytile.problem import Config

WHOLE = Config.of(variant="plain", x=4096, warps=8)
"""What goes over the whole table: with programs of 1024 a table of 2 GB in 16 bits takes as long as one of 4 GB in 32."""
TOTAL = "scratch0"
POINT, ROW = "point", "row"


@dataclass(frozen=True)
class Table:
    """What a store of sums by index writes: `rows` of `columns` elements; `points` is the axis of the indices, `along` that of
    the columns."""

    store: Store
    rows: sympy.Expr
    points: Axis
    along: Axis

    @property
    def own(self) -> tuple[Node, ...]:
        """Of a point: its index and, if there is one, its mask."""
        return tuple(root for root in self.store.roots if root is not self.store.value)

    def asked(self, name: str, many: Axis, origins: tuple[str, ...]) -> Loop:
        """A loop along `many`, which has the points of the table, that wants nothing but `own` of each."""
        roots = expr.substitute(self.own, {self.points.symbol: many.symbol})
        return Loop(name, (many,), (), tuple(Store("asked", many.symbol, root) for root in roots), origins)

    def stored(self, unit: Unit, masks: Sequence[str]) -> None:
        """Stores `total` in the columns of ROW."""
        value = convert("total", self.store.value.dtype, unit.kernel.storage(self.store.buffer))
        place = unit.body.index(self.store.index.xreplace({expr.indirect_symbol(0): sizes.axis(ROW)}))
        unit.out.line(f"tl.store({self.store.buffer} + ({place}), {value}{masked(masks)})")


def is_scattered(loop: Loop) -> bool:
    """Whether the loop stores sums whose places values decide."""
    return any(store.sums and store.indirect for store in loop.stores)


def size_of(loop: Loop) -> sympy.Expr:
    """Elements of what the loop's one store of sums writes, as its checks of indices say."""
    (store,) = loop.stores
    last = {axis.symbol: axis.size - 1 for axis in loop.axes}
    for k, index in enumerate(store.indirect):
        limit = index_limit(index)
        if limit is None:
            raise LoweringError("sums by an index that nothing checks have no Triton form; the operator runs as a library call.")
        last[expr.indirect_symbol(k)] = limit - 1
    return sympy.expand(store.index.xreplace(last) + 1)


def table_of(loop: Loop) -> Table | None:
    """The table of a loop that does nothing but add rows to it, each by one index; None for any other, and for one that never
    adds a row."""
    if len(loop.stores) != 1 or len(loop.axes) != 2 or loop.reduced or len(loop.stores[0].indirect) != 1:
        return None
    (store,), symbol = loop.stores, expr.indirect_symbol(0)
    (index,), limit = store.indirect, index_limit(store.indirect[0])
    chosen = expr.free_symbols(index, *((store.mask,) if store.mask is not None else ()))
    points = [axis for axis in loop.axes if axis.symbol in chosen]
    along = [axis for axis in loop.axes if axis.symbol not in chosen]
    if limit is None or len(points) != 1 or len(along) != 1 or points[0].size == 0:
        return None
    dense = sizes.equal(store.index, symbol * along[0].size + along[0].symbol)
    return Table(store, limit, points[0], along[0]) if store.sums and dense else None


def scatter(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """Zeros, atomics, and the table in its own type."""
    (store,) = kernel.loop.stores
    dtype, everywhere, out = store.value.dtype, _everywhere(kernel), _table(kernel)
    total = TensorArg(TOTAL, dtype, "inout") if needs_scratch(kernel) else out
    mode = "set" if _apart(kernel.loop) else "add"
    adding = replace(kernel.loop, stores=(replace(store, buffer=total.name, mode=mode),))
    read = [tensor for tensor in kernel.tensors if tensor is not out]
    plain = Config(tuple(("variant", "plain") if name == "variant" else (name, value) for name, value in config.values))
    zeros = Store(total.name, everywhere.symbol, expr.const(0.0, dtype))
    rounded = Store(out.name, everywhere.symbol, expr.load(dtype, total.name, everywhere.symbol))

    def launch(loop: Loop, tensors: Sequence[TensorArg], how: Config) -> Launch:
        return on_scratch(LoopKernel(loop, tuple(tensors), kernel.symbols), how, facts, overlaps, {TOTAL: 0})

    launches = [launch(_over(kernel, zeros), [total], WHOLE), launch(adding, [*read, total], plain)]
    if total is out:
        return TritonKernel(tuple(launches))
    launches.append(launch(_over(kernel, rounded), [total, out], WHOLE))
    return TritonKernel(tuple(launches), (Scratch(dtype, everywhere.size),))


def needs_scratch(kernel: LoopKernel) -> bool:
    """Whether the table's own type is too narrow for sums under way."""
    (store,) = kernel.loop.stores
    return not _apart(kernel.loop) and _table(kernel).dtype != store.value.dtype


def _apart(loop: Loop) -> bool:
    """Whether no two points fall on one element: indices are the same for all of them."""
    (store,) = loop.stores
    axes = {axis.symbol for axis in loop.axes}
    return axes <= store.index.free_symbols and not axes & expr.free_symbols(*store.indirect)


def leaders(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """Zeros, and the sums in their places."""
    table = table_of(kernel.loop)
    assert table is not None
    zeros = Store(table.store.buffer, _everywhere(kernel).symbol, expr.const(0.0, table.store.value.dtype))
    alone = LoopKernel(_over(kernel, zeros), (_table(kernel),), kernel.symbols)
    return TritonKernel((
        on_scratch(alone, WHOLE, facts, overlaps, {}),
        Leading(kernel, nest, config, facts, overlaps, table).made(),
    ))  # fmt: skip


def _table(kernel: LoopKernel) -> TensorArg:
    (store,) = kernel.loop.stores
    return next(tensor for tensor in kernel.tensors if tensor.name == store.buffer)


def _everywhere(kernel: LoopKernel) -> Axis:
    """All elements of the table."""
    return Axis(sizes.axis("p0"), size_of(kernel.loop))


def _over(kernel: LoopKernel, store: Store) -> Loop:
    """A loop over the whole table."""
    return Loop(kernel.loop.name, (_everywhere(kernel),), (), (store,), kernel.loop.origins)


class Leading:
    """The launch in the making: `unit` has blocks of columns and one point at a time, `ahead` many points."""

    def __init__(
        self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool, table: Table
    ) -> None:
        self.unit, self.table, self.facts = Unit(kernel, nest, config, facts, overlaps), table, facts
        (self.columns,) = (dim for dim in self.unit.tile.parallel if table.along in dim.axes)
        self.unit.constants["MANY"] = int(config["many"])
        self.points = self.unit.body.index(table.points.size)
        many = Axis(sizes.axis("many"), table.points.size)
        asked = table.asked("asked", many, kernel.loop.origins)
        self.asked, over = asked.roots, nest_of(asked)
        self.many = Dim("MANY", (many,), int(config["many"]))
        self.ahead = Body(kernel, Tile(replace(over, cutting=False), facts, (self.many,), ()), facts, prefix="m")

    def made(self) -> Launch:
        unit, table, out = self.unit, self.table, self.unit.out
        wide = ".to(tl.int64)" if self.facts.wide else ""
        out.line(f"{POINT} = (tl.program_id(1) + tl.program_id(2) * {ROWS}){wide}")
        with out.indented(f"if {POINT} >= {self.points}:"):
            out.line("return")
        out.line(f"{self.columns.name.lower()}_at = tl.program_id(0){wide}")
        unit.parallel(self.columns)
        unit.wait()
        self._own_row()
        out.line(f"total = tl.full({unit.tile.shape(unit.tile.all_dims)}, 0.0, {text.value_type(table.store.value.dtype)})")
        out.extend([f"leads = {POINT} >= 0", "first = 0"])
        with out.indented(f"while leads & (first < {self.points}):"):
            self._block()
            out.line("first += MANY")
        with out.indented("if leads:"):
            table.stored(unit, unit.tile.masks(unit.tile.all_dims))
        unit.body.error |= self.ahead.error
        unit.body.quotients |= self.ahead.quotients
        count, planes = blocks(table.along.size, self.columns.block), blocks(table.points.size, ROWS)
        return unit.launch(grid=(count, sympy.Min(table.points.size, sympy.Integer(ROWS)), planes))

    def _own_row(self) -> None:
        """The ROW on which the program's point falls; one that falls on none ends here."""
        unit, scope = self.unit, Scope()
        scope.lines.append(f"{self.table.points.symbol} = {POINT}")
        row, *conditions = self._fallen(unit.body, self.table.own, scope)
        scope.lines.append(f"{ROW} = {row}")
        unit.flush(scope)
        if conditions:
            with unit.out.indented(f"if ({' & '.join(conditions)}) == 0:"):
                unit.out.line("return")

    def _block(self) -> None:
        """Adds those of the next points that fall on the row, each found as the nearest after the one before."""
        unit, scope, nearest = self.unit, Scope(), f"tl.min(tl.where({{}}, many, {self.points}), 0)"
        scope.lines.append(f"many = first + tl.arange(0, MANY){'.to(tl.int64)' if self.facts.wide else ''}")
        scope.lines.append(f"{self.many.mask} = many < {self.points}")
        found, *conditions = self._fallen(self.ahead, self.asked, scope)
        scope.lines.append(f"same = {' & '.join([f'({found} == {ROW})', *conditions, self.many.mask])}")
        scope.lines.append(f"at = {nearest.format('same')}")
        scope.lines.append(f"leads = at >= {POINT}")
        unit.flush(scope)
        with unit.out.indented(f"while leads & (at < {self.points}):"):
            inner = unit.scope.inner()
            inner.lines.append(f"{self.table.points.symbol} = at")
            inner.lines.append(f"total += {unit.body.full(self.table.store.value, unit.tile.all_dims, inner)}")
            inner.lines.append(f"at = {nearest.format('same & (many > at)')}")
            unit.flush(inner)

    def _fallen(self, body: Body, roots: Sequence[Node], scope: Scope) -> list[str]:
        """The row on which a point falls, and the conditions under which it does; `roots`: its index and mask."""
        names = [body.emit(node, scope) for node in roots]
        return [*names, *body.guards(roots[:1])]


__all__ = ["is_scattered", "leaders", "needs_scratch", "scatter", "size_of", "table_of"]
