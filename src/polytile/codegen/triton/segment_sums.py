"""Segment sums: loops that add up rows by an index, by stores of mode SEGMENT_SUM at places that values determine.
Elements without points are zero. Sums are accumulated in the dtype of their terms, and rounded once.

atomic             launch 0 sets the table to zero, launch 1 adds every point atomically; if the table's dtype is
                   narrower than that of the sums, both use scratch memory, and launch 2 stores its contents; a single
                   point is simply stored
first occurrence   the first point of a row adds up all points of the row (index_search.py)
owner computes     the program that owns a row searches for its points (index_search.py)
sorted             one launch sorts the points, the next one adds up those of each row (sorted_segments.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.ops import convert
from polytile.codegen.triton.scratch import on_scratch
from polytile.codegen.triton.text import masked
from polytile.codegen.triton.tile import Dim
from polytile.codegen.triton.unit import ROWS, Unit
from polytile.errors import LoweringError
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel, TensorArg
from polytile.schedule.facts import Facts, index_limit
from polytile.schedule.gpu.catalogue import pointwise
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Nest

WHOLE = pointwise(x=4096, warps=8)
"""Schedule of launches over the whole table. With programs of 1024 elements, a 2 GB table of 16-bit elements takes as
long as a 4 GB one of 32-bit elements."""
TOTAL = "scratch0"
ROW = "row"


@dataclass(frozen=True)
class Table:
    """The output of a store of sums by index: `rows` rows of columns. `points` is the axis of the indices, `along` that
    of the columns."""

    store: Store
    rows: sympy.Expr
    points: Axis
    along: Axis

    @property
    def own(self) -> tuple[Node, ...]:
        """A point's index and, if there is one, its mask."""
        return tuple(root for root in self.store.roots if root is not self.store.value)

    def index_loop(self, name: str, points: Axis, origins: tuple[str, ...]) -> Loop:
        """A loop along `points`, which ranges over the table's points, that computes only `own` of each."""
        roots = expr.substitute(self.own, {self.points.symbol: points.symbol})
        return Loop(name, (points,), (), tuple(Store("segment", points.symbol, root) for root in roots), origins)

    def store_total(self, unit: Unit, masks: Sequence[str]) -> None:
        """Stores `total` in the columns of ROW."""
        value = convert("total", self.store.value.dtype, unit.kernel.storage(self.store.buffer))
        place = unit.body.index(self.store.index.xreplace({expr.indirect_symbol(0): sizes.axis(ROW)}))
        unit.out.line(f"tl.store({self.store.buffer} + ({place}), {value}{masked(masks)})")


def has_segment_sums(loop: Loop) -> bool:
    """Whether the loop stores sums at places that values determine."""
    return any(store.is_segment_sum and store.indirect for store in loop.stores)


def size_of(loop: Loop) -> sympy.Expr:
    """Number of elements that the loop's only store of sums writes, according to its index checks. Raises LoweringError
    for an index without a check."""
    (store,) = loop.stores
    last = {axis.symbol: axis.size - 1 for axis in loop.axes}
    for k, index in enumerate(store.indirect):
        limit = index_limit(index)
        if limit is None:
            raise LoweringError("sums by an index that nothing checks have no Triton form; the operator runs as a library call.")
        last[expr.indirect_symbol(k)] = limit - 1
    return sympy.expand(store.index.xreplace(last) + 1)


def table_of(loop: Loop) -> Table | None:
    """The table of a loop that only adds rows to it, each by one index; None for any other loop, and for one that never
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
    return Table(store, limit, points[0], along[0]) if store.is_segment_sum and dense else None


def atomic_sums(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """Launches for zeros, atomics and the table in its own dtype."""
    (store,) = kernel.loop.stores
    dtype, everywhere, out = store.value.dtype, _everywhere(kernel), _table(kernel)
    total = TensorArg(TOTAL, dtype, "inout") if needs_scratch(kernel) else out
    mode = "set" if _distinct(kernel.loop) else "add"
    adding = replace(kernel.loop, stores=(replace(store, buffer=total.name, mode=mode),))
    read = [tensor for tensor in kernel.tensors if tensor is not out]
    zeros = Store(total.name, everywhere.symbol, expr.const(0.0, dtype))
    rounded = Store(out.name, everywhere.symbol, expr.load(dtype, total.name, everywhere.symbol))

    def launch(loop: Loop, tensors: Sequence[TensorArg], how: GpuSchedule) -> Launch:
        return on_scratch(LoopKernel(loop, tuple(tensors), kernel.symbols), how, facts, overlaps, {TOTAL: 0})

    launches = [launch(_over(kernel, zeros), [total], WHOLE), launch(adding, [*read, total], points_of(config))]
    if total is out:
        return TritonKernel(tuple(launches))
    launches.append(launch(_over(kernel, rounded), [total, out], WHOLE))
    return TritonKernel(tuple(launches), (Scratch(dtype, everywhere.size),))


def points_of(config: Config) -> GpuSchedule:
    """The blocks of points, or of columns, in a config of segment sums."""
    return pointwise(**{name: int(value) for name, value in config.values if name in ("x", "y", "z", "warps")})


def needs_scratch(kernel: LoopKernel) -> bool:
    """Whether the table's own dtype is too narrow for running sums."""
    (store,) = kernel.loop.stores
    return not _distinct(kernel.loop) and _table(kernel).dtype != store.value.dtype


def _distinct(loop: Loop) -> bool:
    """Whether no two points share an element: their indices are the same for all."""
    (store,) = loop.stores
    axes = {axis.symbol for axis in loop.axes}
    return axes <= store.index.free_symbols and not axes & expr.free_symbols(*store.indirect)


def begin_program(unit: Unit, name: str, count: str, columns: Dim) -> None:
    """Emits the number of the program's row or point as `name`, below `count`, from the second and third axis of the
    grid, and its block of `columns` from the first."""
    out, wide = unit.out, ".to(tl.int64)" if unit.facts.wide else ""
    out.line(f"{name} = (tl.program_id(1) + tl.program_id(2) * {ROWS}){wide}")
    with out.indented(f"if {name} >= {count}:"):
        out.line("return")
    out.line(f"{columns.name.lower()}_at = tl.program_id(0){wide}")
    unit.parallel(columns)
    unit.wait()


def zeroed_table(kernel: LoopKernel, facts: Facts, overlaps: bool) -> Launch:
    """A launch that sets the table to zero."""
    (store,) = kernel.loop.stores
    zeros = Store(store.buffer, _everywhere(kernel).symbol, expr.const(0.0, store.value.dtype))
    alone = LoopKernel(_over(kernel, zeros), (_table(kernel),), kernel.symbols)
    return on_scratch(alone, WHOLE, facts, overlaps, {})


def _table(kernel: LoopKernel) -> TensorArg:
    (store,) = kernel.loop.stores
    return next(tensor for tensor in kernel.tensors if tensor.name == store.buffer)


def _everywhere(kernel: LoopKernel) -> Axis:
    """An axis over all elements of the table."""
    return Axis(sizes.axis("p0"), size_of(kernel.loop))


def _over(kernel: LoopKernel, store: Store) -> Loop:
    """A loop over the whole table."""
    return Loop(kernel.loop.name, (_everywhere(kernel),), (), (store,), kernel.loop.origins)
