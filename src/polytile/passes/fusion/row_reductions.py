"""Fuses reductions of a product's rows into its epilogue: each tile of the product reduces its own columns.

    matmul mm0: buf0 = x @ w                          matmul mm0: buf0 = x @ w
      epilogue for b, m, n                              epilogue for b, m over n
        buf0[m, n] = accumulator + bias[n]       →        buf0[m, n] = accumulator + bias[n]
    loop a for p0 over r0                                 out[m] = reduce sum (accumulator + bias[n])²
      out[p0] = reduce sum buf0[p0, r0]²

`buf0` is not stored if nothing else reads it. If several tiles share a row, each stores a partial reduction, and a second launch
combines them (`matmul/triton/row_epilogue.py`). So no point of a row may depend on the row's reduction, as it does in a norm or a
softmax, which read the row again. A short row is in a single tile, where this is allowed too.

A loop qualifies if its rows are the product's whole rows, if it reads the product at its own point only, and if it stores
floating-point numbers: the index of the largest of nearly equal elements depends on rounding, so it could not tell a correct
kernel from a wrong one. The pass applies to GPU products only; on a CPU the row is in the cache when the loop reads it.
"""

from __future__ import annotations

import torch

from polytile.ir import expr, levels, sizes
from polytile.ir.expr import Scan
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.passes.fusion.epilogue import attached, finished_by, hosted, is_direct, plain_epilogue
from polytile.passes.fusion.merge import Domain, Unfit, join
from polytile.passes.loops import on_gpu

SHORT_ROW = 128
"""Maximum number of columns of a row that is known to fit in one tile: every variant has tiles this wide."""


def fuse_row_reductions(program: Program) -> Program:
    """`program` with reductions of the rows of products fused into their epilogues."""
    return attached(program, _reduces_rows, _with_rows)


def _reduces_rows(loop: Loop) -> bool:
    return bool(loop.reduced) and is_direct(loop) and not any(isinstance(n, Scan) for n in expr.walk(*loop.roots))


def _with_rows(template: Template, consumer: Loop, program: Program, droppable: frozenset[str]) -> Template:
    """`template` with the reductions of `consumer` in its epilogue. Raises Unfit."""
    if not on_gpu(program.buffers[template.a.buffer].device) or template.a.dtype == torch.float64:
        raise Unfit("the product is the library's")
    if template.grouping is not None:
        raise Unfit("blocks of a grouped product's rows begin where groups do")
    if consumer.writes() & template.operand_reads():
        raise Unfit("the consumer overwrites an operand of the product")
    if not all(program.buffers[name].dtype.is_floating_point for name in consumer.writes()):
        raise Unfit("a place or a truth that rests on rounded sums is not the same for all that is right")
    host = template.epilogue or plain_epilogue(template)
    if host.reduced:
        raise Unfit("the epilogue reduces its rows already")
    second = hosted(host, consumer).second
    b, m, n = host.axes
    rows = {symbol for axis in consumer.axes for symbol in second[axis.symbol].free_symbols}
    along = {symbol for axis in consumer.reduced for symbol in second[axis.symbol].free_symbols}
    whole = sizes.equal(sizes.product([axis.size for axis in consumer.reduced]), n.size)
    if not whole or n.symbol in rows or {b.symbol, m.symbol} & along:
        raise Unfit("what is reduced is not the product's rows")
    merged = join(host, consumer, Domain((b, m), (n,), {}, second), program.buffers, droppable).loop
    short = n.size.is_Integer and n.size <= SHORT_ROW
    if not short and levels.waits(merged):
        raise Unfit("a point of the row waits for a reduction, and the row is longer than a block")
    return finished_by(template, merged, n, consumer.origins)
