"""The launches whose programs share no rows, and how each processes the points or rows of its block.

pointwise    every point of the block at once
persistent   reduction or scan: a program holds whole rows in registers; everything is read once
looped       reduction or scan: block after block along the row, once per pass

schedule/gpu/catalogue.py describes the schedules, when each is legal and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import sympy

from polytile.codegen.triton import memory, scans
from polytile.codegen.triton.body import ZERO, Scope
from polytile.codegen.triton.divisions import Carried
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.store_forwarding import stored_before
from polytile.codegen.triton.unit import Chunk, Unit
from polytile.ir import expr
from polytile.ir.expr import Const, Load, Node
from polytile.schedule.answers import Combine, Hold
from polytile.schedule.gpu.scheduled import goes_back
from polytile.schedule.nest import Nest


def pointwise(unit: Unit) -> None:
    """Every point of the block at once. Where masks would split vectors, whole blocks run without masks."""
    unit.place()
    if not unit.masks_split_vectors:
        points(unit, unit.scope)
        return
    with unit.whole():
        points(unit, Scope())
    with unit.out.indented("else:"):
        points(unit, Scope())


def points(unit: Unit, scope: Scope) -> None:
    """Emits the stores of a pointwise loop at the block's points."""
    unit.fetch([root for store in unit.kernel.loop.stores for root in store.roots], scope)
    unit.body.stores(unit.kernel.loop.stores, scope)
    unit.flush(scope)


def persistent(unit: Unit) -> None:
    """Rows held in registers: later passes use the values of earlier ones. If a multiprocessor must hold several
    programs of columns, 16-bit elements are kept packed."""
    for dim in unit.tile.reduced if unit.schedule.blocks.resident else ():
        unit.body.recomputed += unit.positions(dim, unit.block_at(dim, ZERO))
    unit.place()
    for dim in unit.tile.reduced:
        unit.resident(dim)
    whole_rows(unit, unit.scope)
    unit.flush(unit.scope)


def whole_rows(unit: Unit, scope: Scope) -> None:
    """Emits all passes over rows that the block holds, except column sums."""
    nest = unit.nest
    scans.prepare_whole(unit.body)
    unit.fetch([root for k in range(nest.passes) for root in nest.roots_in(k)], scope)
    unit.fetch(gathered_row_loads(nest), scope)
    for k in range(nest.passes + 1):
        unit.body.stores(nest.row_stores(k), scope)
        if k < nest.passes:
            if k:
                unit.body.forget(scope)
            for reduce in nest.reduces_in(k):
                Reduction(unit.body, reduce).at_once(scope)
            stored(unit, k, scope)


def stored(unit: Unit, k: int, scope: Scope) -> None:
    """Emits the stores of pass k, except column sums, which are added up later. The loads that these need come first,
    since a store may overwrite them."""
    stores, written = unit.nest.stores_in(k), unit.kernel.loop.writes()
    needed = expr.loads(*[root for store in stores if store.is_segment_sum for root in store.roots])
    summed = {id(load) for load in needed if load.buffer in written}
    for node in unit.nest.nodes_in(k) if summed else ():
        if id(node) in summed:
            unit.body.emit(node, scope)
    unit.body.stores([store for store in stores if not store.is_segment_sum], scope)


def looped(unit: Unit) -> None:
    """Pass after pass over the row."""
    unit.place()
    unit.fetch(gathered_row_loads(unit.nest), unit.scope)
    for k in range(unit.nest.passes + 1):
        unit.body.stores(unit.nest.row_stores(k), unit.scope)
        unit.flush(unit.scope)
        if k < unit.nest.passes and unit.nest.roots_in(k):
            one_pass(unit, k)


def one_pass(unit: Unit, k: int, share: Chunk | None = None) -> list[Reduction]:
    """Emits pass k over the row or a share of it.

    For a whole row, the scope knows the results of the pass's reductions afterwards. For a share, the returned
    reductions' running values are not combined, and its scans start from existing carries.
    """
    nest, body, scope = unit.nest, unit.body, unit.scope
    reductions = [Reduction(body, r) for r in nest.reduces_in(k)]
    carried = nest.scans_in(k)
    if share is None:
        for scan in carried:
            scans.start(body, scan, scope)
    scans.prepare_carried(body, carried)
    stored = stored_before(unit.kernel, nest, k)
    for node, store in stored.items():
        body.overrides[id(node)] = partial(memory.load, body, expr.load(node.dtype, store.buffer, store.index))
    if stored and share is None:
        unit.out.line("tl.debug_barrier()")  # other threads of the program have stored it

    def points(inner: Scope) -> None:
        body.stores(nest.stores_in(k), inner)
        scans.carry(body, carried, inner)

    again = reads_again(unit, k)
    with body.reading(again, last=bool(k) and not again):
        sweep(unit, k, reductions, share, points)
    body.overrides = {}
    if share is None:
        for reduction in reductions:
            reduction.finish(reduction.running(), scope)
        unit.flush(scope)
    return reductions


def sweep(
    unit: Unit, k: int, reductions: list[Reduction], share: Chunk | None, points: Callable[[Scope], None] = lambda _: None
) -> None:
    """Iterates over the blocks of pass k: adds each to `reductions`, then emits what `points` does at every point."""
    scope = unit.scope
    for node in row_inputs(unit.nest, k):
        unit.body.emit(node, scope)
    for reduction in reductions:
        reduction.start(scope)
    unit.flush(scope)
    *outer, last = [(dim, share if share is not None and dim == share.dim else None) for dim in unit.tile.reduced]
    with ExitStack() as loops:
        for dim, mine in outer:
            loops.enter_context(unit.block_loop(dim, mine))
        carried = Carried(unit.body, last[0], indices(unit.nest, k))
        unit.out.extend(carried.begin(unit.block_at(last[0], last[1].first if last[1] else "0")))
        unit.body.carried = carried.variables
        back = goes_back(unit.nest, k) and not carried.pairs
        loops.enter_context(unit.block_loop(*last, back=back))
        inner = scope.inner()
        unit.fetch(unit.nest.roots_in(k), inner)
        for reduction in reductions:
            reduction.update(inner)
        points(inner)
        unit.flush(inner)
        unit.out.extend(carried.step())
    unit.body.carried = {}
    dim, mine = last
    first, end = (mine.first, mine.last) if mine else ("0", unit.body.index(dim.size))
    for reduction in reductions:
        unit.out.extend(reduction.counted(dim, unit.block_at(dim, first), end))


def gathered_row_loads(nest: Nest) -> list[Node]:
    """The loads at indices from memory that a row's stores need: two dependent loads."""
    roots = [root for k in range(nest.passes + 1) for store in nest.row_stores(k) for root in store.roots]
    return [load for load in expr.loads(*roots) if load.indirect and not nest.in_pass(load)]


def overwritten_row_loads(nest: Nest) -> list[Node]:
    """Values of the row alone that passes need and the loop overwrites. If several programs share the row, one of them
    could overwrite such a value before another has loaded it."""
    roots = [root for k in range(nest.passes) for root in nest.roots_in(k)]
    return [load for load in expr.loads(*roots) if not nest.in_pass(load) and load.buffer in nest.loop.writes()]


def indices(nest: Nest, k: int) -> list[sympy.Expr]:
    """The index expressions of pass k."""
    expressions = [e for node in nest.nodes_in(k) for e in node.indices]
    return expressions + [store.index for store in nest.stores_in(k)]


def row_inputs(nest: Nest, k: int) -> list[Node]:
    """The row's own values that pass k needs, known before it starts."""
    values: dict[int, Node] = {}
    for root in [*nest.roots_in(k), *[c for n in nest.nodes_in(k) for c in n.children]]:
        if not nest.in_pass(root) and not isinstance(root, Const):
            values[id(root)] = root
    return list(values.values())


def reads_again(unit: Unit, k: int) -> set[int]:
    """The loads of pass k that a later pass repeats."""

    def loads(j: int) -> set[int]:
        stored = stored_before(unit.kernel, unit.nest, j)
        return {id(n) for n in unit.nest.nodes_in(j, stop=stored) if isinstance(n, Load)}

    return loads(k) & set().union(*[loads(j) for j in range(k + 1, unit.nest.passes)])


def emit(unit: Unit) -> None:
    """Emits a launch whose programs share no rows."""
    if unit.schedule.combine is Combine.NOTHING:
        pointwise(unit)
    elif unit.schedule.hold is Hold.REGISTERS:
        persistent(unit)
    else:
        looped(unit)
