"""Fuses column sums of a matrix into another loop that reads the matrix row by row, so that it is read once.

    loop a for p0 over r0                              loop a for p0 over r0
      dx[p0, r0] = f(g[p0, r0], x[p0, r0], sums)         dx[p0, r0] = f(g[p0, r0], x[p0, r0], sums)
    loop b for p0 over r0                         →      dw[r0] sum= g[p0, r0]·x[p0, r0]
      dw[p0] = reduce sum g[r0, p0]·x[r0, p0]

The loops qualify if the rows of one are the columns of the other, if the second computes only floating-point sums and reads
nothing that the first stores, and if they share much of their reads at the same points. A kernel may still run one after the
other (candidates/unfused_columns.py). The pass applies to GPUs only: generated CPU kernels have no such stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import ROUNDING
from polytile.ir.expr import Op, Reduce, Scan
from polytile.ir.loop import SEGMENT_SUM, Loop, Store
from polytile.ir.program import Program
from polytile.passes.fusion import cost
from polytile.passes.fusion.graph import Graph
from polytile.passes.fusion.horizontal import WORTHWHILE
from polytile.passes.fusion.merge import Merged, Unfit, merge
from polytile.passes.loops import on_gpu


def fuse_columns(program: Program) -> Program:
    """`program` with column sums fused into loops along the rows of the same matrices."""
    graph = Graph(program)
    for i in list(graph.operations):
        sums = _as_sums(graph.operations.get(i), program.buffers)
        if sums is None:
            continue
        for j in list(graph.operations):
            rows = graph.operations[j]
            if i == j or not isinstance(rows, Loop) or not _goes_along_rows(rows) or graph.ordered(i, j) is None:
                continue
            merged = _merged(rows, sums, program.buffers)
            if merged is not None and _worthwhile(sums, merged, program.buffers):
                graph.merge(i, j, merged.loop)
                break
    return replace(program, operations=graph.in_order())


def _as_sums(operation: object, buffers: Mapping[str, Buffer]) -> Loop | None:
    """A loop that only sums down columns, rewritten as a loop along rows with SEGMENT_SUM stores; None for any other
    operation."""
    if not isinstance(operation, Loop) or len(operation.axes) != 1 or not operation.reduced:
        return None
    if not all(on_gpu(buffers[name].device) for name in operation.writes()):
        return None
    stores = [_as_sum(operation, store, buffers[store.buffer].dtype) for store in operation.stores]
    sums = tuple(store for store in stores if store is not None)
    fits = len(sums) == len(stores) and sizes.coefficient(sums[0].index, operation.axes[0].symbol) == 1
    return replace(operation, axes=operation.reduced, reduced=operation.axes, stores=sums) if fits else None


def _as_sum(loop: Loop, store: Store, dtype: torch.dtype) -> Store | None:
    """The store of a column sum as a SEGMENT_SUM of its terms; None if it does more than round the sum to the buffer's dtype."""
    value, rounding = store.value, ROUNDING.get(dtype)
    if isinstance(value, Op) and value.name == rounding:
        value = value.args[0]
    if not store.is_plain or not isinstance(value, Reduce) or value.kind != "sum" or not value.dtype.is_floating_point:
        return None
    (term,) = value.args
    deep = any(isinstance(node, Reduce | Scan) for node in expr.walk(term))
    return None if deep or term.dtype != value.dtype else Store(store.buffer, store.index, term, SEGMENT_SUM)


def _goes_along_rows(loop: Loop) -> bool:
    """Whether the loop has reductions along a single reduced axis, and neither scans nor scatters."""
    plain = all(store.mode == "set" and not store.indirect for store in loop.stores)
    nodes = list(expr.walk(*loop.roots))
    reduces = any(isinstance(node, Reduce) for node in nodes) and not any(isinstance(node, Scan) for node in nodes)
    return plain and reduces and len(loop.reduced) == 1 and bool(loop.axes)


def _merged(rows: Loop, sums: Loop, buffers: Mapping[str, Buffer]) -> Merged | None:
    """Both as one loop; None if they cannot be fused."""
    if rows.writes() & sums.reads() or sums.writes() & rows.reads() or not rows.reads() & sums.reads():
        return None
    try:
        merged = merge(sums, rows, buffers, frozenset())
    except Unfit:
        return None
    one = merged.loop
    whole = set(one.ranges)
    columns = {axis.symbol for axis in one.reduced}
    down = all(columns <= store.index.free_symbols < whole for store in one.stores if store.is_segment_sum)
    return merged if down and len(one.reduced) == 1 else None


def _worthwhile(sums: Loop, merged: Merged, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the row loop shares a sufficient part of the reads of the sums."""
    mine, _ = cost.traffic(sums, buffers)
    saved = sum(size for name, size in mine.items() if name in merged.common)
    return saved >= WORTHWHILE * sum(mine.values())
