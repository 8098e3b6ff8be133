"""The schedules of loops that add up rows by an index: stores of mode SUM whose places values decide. What nothing falls on is
zero. Sums are in the type of their terms, and rounded once.

scatter   launch 0 sets scratch memory to zero, launch 1 adds every point to it by atomics, launch 2 stores what it holds
collect   one launch, for few points: a program has a row of the table, goes through all indices and adds up what is its own

`collect` looks at `many` indices at once, and at one after another where its row is among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
from torch.utils._sympy.functions import FloorDiv

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
from polytile.kernels.triton.tile import Dim, Tile
from polytile.kernels.triton.unit import ROWS, Unit
from polytile.problem import Config

WHOLE = Config.of(variant="plain", x=1024, warps=4)
"""What goes over the whole table."""
TOTAL = "scratch0"
TABLE = sizes.axis("table")


@dataclass(frozen=True)
class Table:
    """What a store of sums by index writes: `rows` of `columns` elements; `points` is the axis of the indices, `along` that of
    the columns."""

    store: Store
    rows: sympy.Expr
    points: Axis
    along: Axis


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
    """The table of a loop that does nothing but add rows to it, each by one index; None for any other."""
    if len(loop.stores) != 1 or len(loop.axes) != 2 or loop.reduced or len(loop.stores[0].indirect) != 1:
        return None
    (store,), symbol = loop.stores, expr.indirect_symbol(0)
    (index,), limit = store.indirect, index_limit(store.indirect[0])
    chosen = expr.free_symbols(index, *((store.mask,) if store.mask is not None else ()))
    points = [axis for axis in loop.axes if axis.symbol in chosen]
    along = [axis for axis in loop.axes if axis.symbol not in chosen]
    if limit is None or len(points) != 1 or len(along) != 1:
        return None
    dense = sizes.equal(store.index, symbol * along[0].size + along[0].symbol)
    return Table(store, limit, points[0], along[0]) if store.sums and dense else None


def scatter(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """Zeros, atomics, and the table in its own type."""
    (store,) = kernel.loop.stores
    dtype, everywhere = store.value.dtype, Axis(sizes.axis("p0"), size_of(kernel.loop))
    total, out = TensorArg(TOTAL, dtype, "inout"), next(t for t in kernel.tensors if t.name == store.buffer)

    def launch(loop: Loop, tensors: Sequence[TensorArg], how: Config) -> Launch:
        return on_scratch(LoopKernel(loop, tuple(tensors), kernel.symbols), how, facts, overlaps, {TOTAL: 0})

    def over(one: Store) -> Loop:
        return Loop(kernel.loop.name, (everywhere,), (), (one,), kernel.loop.origins)

    adding = replace(kernel.loop, stores=(replace(store, buffer=TOTAL, mode="add"),))
    read = [tensor for tensor in kernel.tensors if tensor is not out]
    plain = Config(tuple(("variant", "plain") if name == "variant" else (name, value) for name, value in config.values))
    launches = (
        launch(over(Store(TOTAL, everywhere.symbol, expr.const(0.0, dtype))), [total], WHOLE),
        launch(adding, [*read, total], plain),
        launch(over(Store(out.name, everywhere.symbol, expr.load(dtype, TOTAL, everywhere.symbol))), [total, out], WHOLE),
    )
    return TritonKernel(launches, (Scratch(dtype, everywhere.size),))


def collect(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """One launch, a program for each row of the table and block of columns."""
    table = table_of(kernel.loop)
    assert table is not None
    return TritonKernel((Collecting(kernel, nest, config, facts, overlaps, table).made(),))


class Collecting:
    """The launch in the making: `unit` has blocks of columns and one point at a time, `ahead` many points."""

    def __init__(
        self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool, table: Table
    ) -> None:
        self.unit, self.table, self.facts = Unit(kernel, nest, config, facts, overlaps), table, facts
        (self.columns,) = (dim for dim in self.unit.tile.parallel if table.along in dim.axes)
        self.unit.constants["MANY"] = int(config["many"])
        self.points = self.unit.body.index(table.points.size)
        many = Axis(sizes.axis("many"), table.points.size)
        asked = tuple(root for root in table.store.roots if root is not table.store.value)
        moved = expr.substitute(asked, {table.points.symbol: many.symbol})
        stores = tuple(Store("asked", many.symbol, root) for root in moved)
        own = nest_of(Loop("asked", (many,), (), stores, kernel.loop.origins))
        self.many = Dim("MANY", (many,), int(config["many"]))
        self.asked = moved
        self.ahead = Body(kernel, Tile(replace(own, cutting=False), facts, (self.many,), ()), facts, prefix="m")

    def made(self) -> Launch:
        unit, table, body = self.unit, self.table, self.unit.body
        rows = body.index(table.rows)
        wide = ".to(tl.int64)" if self.facts.wide else ""
        unit.out.line(f"{TABLE} = (tl.program_id(1) + tl.program_id(2) * {ROWS}){wide}")
        with unit.out.indented(f"if {TABLE} >= {rows}:"):
            unit.out.line("return")
        unit.out.line(f"{self.columns.name.lower()}_at = tl.program_id(0){wide}")
        unit.parallel(self.columns)
        unit.wait()
        dtype, shape = text.value_type(table.store.value.dtype), unit.tile.shape(unit.tile.all_dims)
        unit.out.line(f"total = tl.full({shape}, 0.0, {dtype})")
        with unit.out.indented(f"for first in range(0, {self.points}, MANY):"):
            self._any()
            with unit.out.indented("if found > 0:"):
                self._each()
        value = convert("total", table.store.value.dtype, unit.kernel.storage(table.store.buffer))
        place = body.index(table.store.index.xreplace({expr.indirect_symbol(0): TABLE}))
        masks = unit.tile.masks(unit.tile.all_dims)
        unit.out.line(f"tl.store({table.store.buffer} + ({place}), {value}{', mask=' + masks[0] if masks else ''})")
        body.error |= self.ahead.error
        body.quotients |= self.ahead.quotients
        blocks = FloorDiv(table.along.size + self.columns.block - 1, sympy.Integer(self.columns.block))
        planes = FloorDiv(table.rows + ROWS - 1, sympy.Integer(ROWS))
        return unit.launch(grid=(blocks, sympy.Min(table.rows, sympy.Integer(ROWS)), planes))

    def _any(self) -> None:
        """How many of the next indices are those of the program's row."""
        unit, scope = self.unit, self.unit.scope.inner()
        scope.lines.append(f"many = first + tl.arange(0, MANY){'.to(tl.int64)' if self.facts.wide else ''}")
        scope.lines.append(f"{self.many.mask} = many < {self.points}")
        conditions = [*self._own(self.ahead, self.asked, scope), self.many.mask]
        scope.lines.append(f"found = tl.sum(({' & '.join(conditions)}).to(tl.int32), 0)")
        unit.flush(scope)

    def _each(self) -> None:
        """One point after another, those of the row added up."""
        unit, store = self.unit, self.table.store
        with unit.out.indented(f"for point in range(first, tl.minimum(first + MANY, {self.points})):"):
            scope = unit.scope.inner()
            at = "tl.cast(point, tl.int64)" if self.facts.wide else "point"
            scope.lines.append(f"{self.table.points.symbol} = {at}")
            asked = tuple(root for root in store.roots if root is not store.value)
            conditions = self._own(unit.body, asked, scope)
            unit.flush(scope)
            with unit.out.indented(f"if {' & '.join(conditions)}:"):
                inner = scope.inner()
                inner.lines.append(f"total += {unit.body.full(store.value, unit.tile.all_dims, inner)}")
                unit.flush(inner)

    def _own(self, body: Body, asked: Sequence[Node], scope: Scope) -> list[str]:
        """Under which conditions a point falls on the program's row, `asked` being its index and mask."""
        names = [body.emit(node, scope) for node in asked]
        return [f"({names[0]} == {TABLE})", *names[1:], *body.guards(asked[:1])]


__all__ = ["collect", "is_scattered", "scatter", "table_of"]
