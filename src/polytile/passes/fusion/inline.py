"""Recomputes cheap values where they are read instead of storing them, for producers that fit no consumer's domain.

    loop a for p0                        loop b for p0, p1
      scaled[p0] = mul x[p0] 2     →       out[p0, p1] = add y[p0, p1] (mul x[p0] 2)
    loop b for p0, p1
      out[p0, p1] = add y[p0, p1] scaled[p0]

A producer qualifies if every reader of the buffer is a loop or an epilogue that can compute the value at the elements that it
reads, so that the buffer disappears, and if that costs less than CHEAP multiply-adds and reads no more than the buffer itself
would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Load, Node
from polytile.ir.loop import Loop, Store
from polytile.ir.program import Operation, Program
from polytile.ir.template import Template
from polytile.passes.fusion import cost
from polytile.passes.fusion.merge import MAX_NODES, Unfit, stored_value, stores_on
from polytile.passes.loops import Mapped, linear, node_count, touching

MAX_LOADS = 4  # maximum for a value that is recomputed


def inline_cheap(program: Program) -> Program:
    """`program` without temporaries whose values their readers can compute as cheaply."""
    operations: list[Operation | None] = list(program.operations)
    users = touching(program.operations)
    observed = program.observed_buffers()
    for i in range(len(operations)):
        producer = operations[i]
        if not isinstance(producer, Loop) or not _is_simple(producer) or producer.stores[0].buffer in observed:
            continue
        readers = [k for k in users[producer.stores[0].buffer] if k != i]
        try:
            changed = _inlined(i, producer, {k: operations[k] for k in readers}, operations, program.buffers)
        except Unfit:
            continue
        operations[i] = None
        for k, operation in changed.items():
            operations[k] = operation
        for name in producer.reads():
            users[name] = sorted((set(users[name]) | changed.keys()) - {i})
    return replace(program, operations=tuple(o for o in operations if o is not None))


def _inlined(
    i: int,
    producer: Loop,
    readers: Mapping[int, Operation | None],
    operations: Sequence[Operation | None],
    buffers: Mapping[str, Buffer],
) -> dict[int, Operation]:
    """The readers with their loads replaced by the value. Raises Unfit."""
    store = producer.stores[0]
    uses = sum(_loads_of(reader, store.buffer) for reader in readers.values())
    if not uses or not _is_affordable(producer, uses, buffers):
        raise Unfit("computing it again costs more than reading it")
    if any(store.buffer in reader.writes() for reader in readers.values() if reader is not None):
        raise Unfit("others write the rest of the buffer")
    needs = producer.reads() | producer.writes()
    between = [o for o in operations[i + 1 : max(readers) + 1] if o is not None]
    if any(o.writes() & needs for o in between):
        raise Unfit("what it is computed from changes before it is read")
    return {k: _with_value(reader, producer, buffers) for k, reader in readers.items()}


def _loads_of(operation: Operation | None, name: str) -> int:
    loop = operation.epilogue if isinstance(operation, Template) else operation
    return sum(load.buffer == name for load in expr.loads(*loop.roots)) if isinstance(loop, Loop) else 0


def _is_simple(producer: Loop) -> bool:
    """Whether the loop is a plain store of a cheap pointwise value with few loads and no gather."""
    store = producer.stores[0]
    if len(producer.stores) > 1 or producer.reduced or not store.is_plain:
        return False
    nodes = list(expr.walk(*producer.roots))
    loads = [n for n in nodes if isinstance(n, Load)]
    checked = any(load.indirect for load in loads) or any(expr.is_check(n) for n in nodes)
    return not checked and len(loads) <= MAX_LOADS and cost.compute(*producer.roots) < cost.CHEAP


def _is_affordable(producer: Loop, uses: int, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the value is loaded only once, or its inputs are no larger than the buffer."""
    reads, writes = cost.traffic(producer, buffers)
    return uses == 1 or sum(reads.values()) <= writes[producer.stores[0].buffer] * (uses + 1) / uses


def _with_value(operation: Operation | None, producer: Loop, buffers: Mapping[str, Buffer]) -> Operation:
    if isinstance(operation, Loop):
        return _with_value_in_loop(operation, producer, buffers)
    if isinstance(operation, Template) and operation.epilogue is not None:
        name = producer.stores[0].buffer
        if name not in (operation.a.buffer, operation.b.buffer):
            return replace(operation, epilogue=_with_value_in_loop(operation.epilogue, producer, buffers))
    raise Unfit("a reader needs the buffer itself")


def _with_value_in_loop(loop: Loop, producer: Loop, buffers: Mapping[str, Buffer]) -> Loop:
    store = producer.stores[0]
    ranges = loop.ranges

    def rule(load: Load) -> Node:
        if load.buffer != store.buffer:
            return load
        if load.indirect or load.dtype != compute_dtype(buffers[load.buffer].dtype):
            raise Unfit("read through another index or as another type")
        return _value_at(load, producer, store, buffers[load.buffer], ranges)

    if stores_on(loop, buffers) != stores_on(producer, buffers):
        raise Unfit("the reader runs on another device")
    new = loop.map_loads(rule)
    if node_count(*new.roots) > MAX_NODES:
        raise Unfit("the reader would be too large")
    return new


def _value_at(load: Load, producer: Loop, store: Store, buffer: Buffer, ranges: Mapped) -> Node:
    """The producer's value at the element that `load` reads."""
    mapping = solve(store.index, load.index, producer, ranges)
    value = expr.map_indices(
        (stored_value(store.value, buffer),), lambda e: divisions.simplify(sizes.substitute(e, mapping), ranges)
    )[0]
    if load.mask is None:
        return value
    return expr.op("where", load.dtype, load.mask, expr.mask_loads(value, load.mask), expr.const(0, load.dtype))


def solve(stored: sympy.Expr, wanted: sympy.Expr, producer: Loop, ranges: Mapped) -> dict[sympy.Symbol, sympy.Expr]:
    """The producer's axes at which its store index equals `wanted`, without division or modulus.

    The store index must be a mixed-radix number of the axes: each stride is the product of the next one and that axis's size.

    Raises
    ------
    Unfit
        If there is no such solution.
    """
    form = linear(stored, tuple(a.symbol for a in producer.axes))
    axes = [a for a in producer.axes if a.size != 1]
    if form is None or any(a.symbol not in form.coefficients for a in axes):
        raise Unfit("the store does not go over the buffer one element a point")
    mapping = {a.symbol: sizes.ZERO for a in producer.axes if a.size == 1}
    rest, stride = divisions.simplify(wanted - form.rest, ranges), sizes.ONE
    while axes:
        axis = next((a for a in axes if form.coefficients[a.symbol] == stride), None)
        if axis is None:
            raise Unfit("the store's strides are not those of a dense buffer")
        axes.remove(axis)
        mapping[axis.symbol] = rest if not axes else divisions.modulo(rest, axis.size, ranges)
        rest = divisions.floor_div(rest, axis.size, ranges)
        stride = sizes.expand(stride * axis.size)
    if any(sizes.has_division(e) for e in mapping.values()):
        raise Unfit("the element read needs a division")
    return mapping
