"""Moves per-row values that a second loop sums into the loop over the rows, if they pick an element of the row.

    loop a for p0 over r0                              loop a for p0 over r0
      m[p0] = reduce max x[p0, r0]                       loss[p0] = log (reduce sum …) + m - x[p0, t[p0]]
      s[p0] = reduce sum exp (x[p0, r0] - m[p0])    →
    loop b over r0                                     loop b over r0
      out = reduce sum (log s[r0] + m[r0] - x[r0, t[r0]])    out = reduce sum loss[r0]

Otherwise the last launch of a cross entropy gathers elements from all over the matrix, which are no longer in any cache. It must
first load their indices, and has few programs to hide the latency. The program that handles the row has just loaded the element.

The loops qualify if b reduces all rows to one value, and if the terms of b that use what a passes to it read an element of a
buffer that a reads, at an index from memory. There must be no more such terms than passed buffers. Whatever else needs of a's
results is stored as before, for example for the gradient. The pass applies to GPUs only: a CPU core has the row in its cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node, Reduce
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Operation, Program
from polytile.passes.fusion.merge import Unfit, merge, stores_on
from polytile.passes.loops import on_gpu, reindexed, touching


def fuse_row_values(program: Program) -> Program:
    """`program` with per-row terms of a total computed by the loops along the rows."""
    operations, buffers = list(program.operations), dict(program.buffers)
    observed = program.observed_buffers()
    readers = touching(program.operations)
    for j, total in enumerate(program.operations):
        if not isinstance(total, Loop) or total.axes or not total.reduced or not all(map(on_gpu, stores_on(total, buffers))):
            continue
        for i, rows in _before(operations, j, total):
            passed = rows.writes() & total.reads()
            alone = frozenset(name for name in passed - observed if readers[name] == [i, j])
            made = _values(rows, total, passed, buffers)
            changed = set().union(*[operation.writes() for operation in operations[i + 1 : j]])
            if made is None or made[0].reads() & changed:
                continue
            values, rest, stored = made
            try:
                operations[i] = merge(rows, values, {**buffers, **stored}, alone).loop
            except Unfit:
                continue
            operations[j] = rest
            buffers.update(stored)
            break
    return replace(program, operations=tuple(operations), buffers=buffers)


def _before(operations: list[Operation], j: int, total: Loop) -> Iterator[tuple[int, Loop]]:
    """Earlier loops along rows that pass a buffer to `total`."""
    for i, operation in enumerate(operations[:j]):
        if isinstance(operation, Loop) and operation.reduced and operation.axes and operation.writes() & total.reads():
            yield i, operation


def _values(
    rows: Loop, total: Loop, passed: set[str], buffers: Mapping[str, Buffer]
) -> tuple[Loop, Loop, dict[str, Buffer]] | None:
    """Split `total` into per-row terms and their sum.

    Returns the loop over rows that stores the terms of `total` that use `passed` buffers, `total` without them, and the buffers
    for the terms. None if there are more terms than passed buffers, or if no element of the rows is picked.
    """
    terms = list(dict.fromkeys(arg for n in expr.walk(*total.roots) if isinstance(n, Reduce) for arg in n.args))
    terms = [term for term in terms if any(load.buffer in passed for load in expr.loads(term))]
    picked = any(load.indirect and load.buffer in rows.reads() for load in expr.loads(*terms))
    if not picked or len(terms) > len(passed) or any(term.dtype != compute_dtype(term.dtype) for term in terms):
        return None
    axes = tuple(Axis(sizes.axis(f"p{k}"), axis.size) for k, axis in enumerate(total.reduced))
    extents = tuple(axis.size for axis in axes)
    (device,) = stores_on(total, buffers)
    stored, stores, loads = {}, [], dict[int, Node]()
    for k, term in enumerate(terms):
        name = f"{total.name}_rows{k}"
        stored[name] = buffer = Buffer(name, term.dtype, extents, sizes.contiguous_strides(extents), device)
        index = buffer.index(tuple(axis.symbol for axis in total.reduced))
        loads[id(term)] = expr.load(term.dtype, name, index)
        stores.append(Store(name, index, term))
    alone = Loop(f"{total.name}_rows", total.reduced, (), tuple(stores), total.origins)
    mapping = {a.symbol: b.symbol for a, b in zip(total.reduced, axes, strict=True)}

    rest = total.exchange(loads)
    still_read = passed & rest.reads()
    return None if still_read else (reindexed(alone, axes, (), mapping), rest, stored)
