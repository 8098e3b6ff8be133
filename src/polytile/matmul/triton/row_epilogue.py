"""Reductions of a product's rows in its epilogue.

A row that fits in one tile is reduced there, and points of the row may use the result. For a longer row, every tile stores the
partial reduction of its own columns to scratch memory, [column of tiles, row]. A last launch combines them and does the row-level
stores, always in the same order, so that results are the same at every call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from polytile.codegen.triton import text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.kernel import Scratch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.tile import Dim, Tile, blocks
from polytile.ir.loop import Loop
from polytile.matmul.triton.operands import symbol
from polytile.schedule.nest import Form, Nest

if TYPE_CHECKING:
    from polytile.matmul.triton.unit import Unit

ROWS, PARTS = 16, 32
"""Rows per program of the last launch, and the number of parts that it reads at once."""
VALUES = {"welford": 3, "argmax": 2, "argmin": 2, "online_softmax": 2}
"""Number of state values of reductions that have several."""
PAIRWISE = {"welford": "pt_welford_two"}
"""Functions that combine two partial states, for reductions whose `combine` adds an element to a state."""


def layout(loop: Loop) -> Nest:
    """A nest of rows (batch, m), with n along them."""
    return Nest(loop, Form.ROW, loop.reduced[0], loop.axes, ())


def values(loop: Loop) -> int:
    """Total number of state values of the loop's reductions."""
    return sum(VALUES.get(node.kind, 1) for node in layout(loop).reduces)


def emit(unit: Unit, body: Body, scope: Scope) -> None:
    """Emit the epilogue on one accumulator tile: all of it, or the part that can be done before the rest of the row is known."""
    nest, (along,) = body.nest, body.tile.reduced
    if unit.shares_rows:
        body.stores([store for k in range(nest.passes) for store in nest.stores_in(k)], scope)
        _leave(unit, body, along, scope)
        return
    for k in range(nest.passes + 1):
        body.stores(nest.row_stores(k), scope)
        if k < nest.passes:
            for node in nest.reduces_in(k):
                reduction = Reduction(body, node)
                _take(body, reduction, along, scope)
                reduction.finish(reduction.running(), scope)
            body.stores(nest.stores_in(k), scope)


def _take(body: Body, reduction: Reduction, along: Dim, scope: Scope) -> None:
    """Emit the reduction of this tile alone."""
    reduction.start(scope)
    reduction.update(scope)
    scope.lines += reduction.counted(along, along.variable, f"tl.minimum((at_n + 1) * {along.name}, {body.index(along.size)})")


def _leave(unit: Unit, body: Body, along: Dim, scope: Scope) -> None:
    """Emit stores of the partial reductions of the tile's own columns."""
    masks = body.tile.masks(body.tile.parallel_dims)
    number = 0
    for node in body.nest.reduces:
        reduction = Reduction(body, node)
        _take(body, reduction, along, scope)
        names = reduction.running("part")
        scope.lines.append(f"{', '.join(names)} = {reduction.across(reduction.running())}")
        for name, part in zip(names, reduction.parts, strict=True):
            place = f"{unit.scratch(number, part.dtype)} + (at_n * {_rows(unit)} + {_row(unit, body)})"
            scope.lines.append(f"tl.store({place}, {name}{', mask=' + masks[0] if masks else ''})")
            number += 1


def completed(unit: Unit, kernel: TritonKernel) -> TritonKernel:
    """`kernel` with the launch that combines partial row reductions, if there are any. `unit` is that launch."""
    if not unit.shares_rows:
        return kernel
    loop, nest = unit.finish.loop, layout(unit.finish.loop)
    unit.constants = {"BLOCK_M": ROWS, "BLOCK_N": unit.columns, "PARTS": PARTS}
    (b, m), along = loop.axes, Dim("PARTS", loop.reduced, PARTS, True)
    rows = Dim("BLOCK_M", (m,), ROWS)
    body = Body(unit.finish, Tile(nest, unit.facts, (Dim("P0", (b,), 1), rows), (along,)), unit.facts)
    _place(unit)
    unit.positions(body, "at_m * BLOCK_M + tl.arange(0, BLOCK_M)", rows)
    reductions = [Reduction(body, node) for node in nest.reduces]
    scratch = _put_together(unit, body, reductions)
    scope = Scope()
    for reduction in reductions:
        reduction.finish(reduction.running(), scope)
    body.stores([store for k in range(nest.passes + 1) for store in nest.row_stores(k)], scope)
    unit.finished(body, scope)
    last = unit.launch(blocks(symbol("M"), ROWS) * symbol("batch"), stages=1)
    return replace(kernel, launches=(*kernel.launches, last), scratch=(*scratch, *kernel.scratch))


def _put_together(unit: Unit, body: Body, reductions: list[Reduction]) -> tuple[Scratch, ...]:
    """Emit a loop that combines the partial reductions of whole rows, PARTS at a time; returns the scratch memory that they come
    from."""
    line, shape = unit.out.line, body.tile.shape(body.tile.all_dims)
    size = blocks(symbol("N"), unit.columns) * symbol("batch") * symbol("M")
    parts = [(reduction, name, part) for reduction in reductions
             for name, part in zip(reduction.running(), reduction.parts, strict=True)]  # fmt: skip
    for _, name, part in parts:
        line(f"{name} = tl.full({shape}, {part.literal}, {text.value_type(part.dtype)})")
    line(f"count = tl.cdiv({unit.number('N')}, BLOCK_N)")
    masks = " & ".join(["(at < count)", *body.tile.masks(body.tile.parallel_dims)])
    with unit.out.indented("for first in range(0, count, PARTS):"):
        line("at = first + tl.arange(0, PARTS)[None, :]")
        for number, (_, name, part) in enumerate(parts):
            place = f"{unit.scratch(number, part.dtype)} + (at * {_rows(unit)} + {_row(unit, body)})"
            line(f"{name}_next = tl.load({place}, mask={masks}, other={part.literal})")
        for reduction in reductions:
            names = reduction.running()
            combine = PAIRWISE.get(reduction.kind, reduction.combine)
            line(f"{', '.join(names)} = {combine}({', '.join([*names, *[f'{name}_next' for name in names]])})")
    return tuple(Scratch(part.dtype, size) for _, _, part in parts)


def _place(unit: Unit) -> None:
    """Emit the rows of a program of the last launch."""
    line = unit.out.line
    line("number = tl.program_id(0)" + (".to(tl.int64)" if unit.facts.wide else ""))
    line(f"tiles_m = tl.cdiv({unit.number('M')}, BLOCK_M)")
    if unit.kernel.spec.batched:
        line("item = number // tiles_m")
    line("at_m = number % tiles_m")


def _rows(unit: Unit) -> str:
    """The total number of rows, as text."""
    return f"({unit.number('batch')} * {unit.number('M')})" if unit.kernel.spec.batched else unit.number("M")


def _row(unit: Unit, body: Body) -> str:
    """The indices of the tile's rows, as text."""
    m = body.nest.loop.axes[1].symbol
    return f"item * {unit.number('M')} + {m}" if unit.kernel.spec.batched else str(m)
