"""Cheap values computed where they are read, instead of stored: for producers that fit no consumer's domain.

    loop a for p0                        loop b for p0, p1
      scaled[p0] = mul x[p0] 2     →       out[p0, p1] = add y[p0, p1] (mul x[p0] 2)
    loop b for p0, p1
      out[p0, p1] = add y[p0, p1] scaled[p0]

Only if every reader of the buffer is a loop or an epilogue that can compute the value at the elements it reads, so
that the buffer goes away; only if computing costs less than CHEAP multiply-adds and reads no more than what reading
the buffer would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from polytile.ir import expr, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.program import Buffer, Loop, Operation, Program, Store, Template, compute_dtype
from polytile.passes.fusion import cost
from polytile.passes.fusion.merge import MAX_NODES, Unfit, stored_value
from polytile.passes.loops import Mapped, linear, node_count


def inline_cheap(program: Program) -> Program:
    """`program` without temporaries whose values are as well computed by their readers."""
    operations: list[Operation | None] = list(program.operations)
    kept = program.output_buffers() | program.input_buffers() | set(program.scalars.values())
    for i in range(len(operations)):
        current = operations[i]
        if isinstance(current, Loop) and len(current.stores) == 1 and current.stores[0].buffer not in kept:
            _inline(i, current, operations, program.buffers)
    return replace(program, operations=tuple(o for o in operations if o is not None))


def _inline(i: int, producer: Loop, operations: list[Operation | None], buffers: Mapping[str, Buffer]) -> None:
    """Replaces the readers' loads by the value and removes the producer, or changes nothing."""
    store = producer.stores[0]
    users = [k for k, o in enumerate(operations) if k != i and o is not None and store.buffer in o.reads() | o.writes()]
    uses = sum(_loads_of(operations[k], store.buffer) for k in users)
    if not _is_cheap(producer, uses, buffers) or _overwritten(producer, i, max(users, default=i), operations):
        return
    try:
        changed = {k: _with_value(operations[k], producer, buffers) for k in users}
    except Unfit:
        return
    operations[i] = None
    for k, operation in changed.items():
        operations[k] = operation


def _loads_of(operation: Operation | None, name: str) -> int:
    loop = operation.epilogue if isinstance(operation, Template) else operation
    return sum(load.buffer == name for load in expr.loads(*loop.roots)) if isinstance(loop, Loop) else 0


def _is_cheap(producer: Loop, uses: int, buffers: Mapping[str, Buffer]) -> bool:
    """A pointwise value of few loads that is loaded once, or whose inputs are no more to read than the buffer
    itself."""
    store = producer.stores[0]
    if producer.reduced or store.mode != "set" or store.indirect or store.mask is not None:
        return False
    loads = expr.loads(*producer.roots)
    if any(load.indirect for load in loads) or any(
        isinstance(n, Op) and n.name == "check_index" for n in expr.walk(*producer.roots)
    ):
        return False
    reads, writes = cost.traffic(producer, buffers)
    own = writes[store.buffer]
    affordable = uses <= 1 or sum(reads.values()) <= own * (uses + 1) / uses
    return uses > 0 and cost.compute(*producer.roots) < cost.CHEAP and affordable and len(loads) <= 4


def _overwritten(producer: Loop, first: int, last: int, operations: list[Operation | None]) -> bool:
    """Whether something between the producer and its last reader changes what the producer reads."""
    reads = producer.reads() | producer.writes()
    between = [o for o in operations[first + 1 : last + 1] if o is not None]
    return any(o.writes() & reads for o in between)


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

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        node = expr.rebuild(node, children)
        if not isinstance(node, Load) or node.buffer != store.buffer:
            return node
        if node.indirect or node.dtype != compute_dtype(buffers[node.buffer].dtype):
            raise Unfit("read through another index or as another type")
        return _value_at(node, producer, store, buffers[node.buffer], ranges)

    new = loop.map_roots(lambda roots: expr.rewrite(roots, rule))
    if node_count(*new.roots) > MAX_NODES:
        raise Unfit("the reader would be too large")
    return new


def _value_at(load: Load, producer: Loop, store: Store, buffer: Buffer, ranges: Mapped) -> Node:
    """The producer's value at the element that `load` reads."""
    mapping = solve(store.index, load.index, producer, ranges)
    value = expr.map_indices(
        (stored_value(store.value, buffer),), lambda e: sizes.simplify(sizes.substitute(e, mapping), ranges)
    )[0]
    if load.mask is None:
        return value
    return expr.op("where", load.dtype, load.mask, expr.mask_loads(value, load.mask), expr.const(0, load.dtype))


def solve(stored: sympy.Expr, wanted: sympy.Expr, producer: Loop, ranges: Mapped) -> dict[sympy.Symbol, sympy.Expr]:
    """The producer's axes at which its store index is `wanted`, without division or modulus. Raises Unfit.

    The store index must be a mixed-radix number of the axes: each stride the product of the next one and its axis'
    size.
    """
    form = linear(stored, tuple(a.symbol for a in producer.axes))
    axes = [a for a in producer.axes if a.size != 1]
    if form is None or any(a.symbol not in form.coefficients for a in axes):
        raise Unfit("the store does not go over the buffer one element a point")
    mapping = {a.symbol: sizes.ZERO for a in producer.axes if a.size == 1}
    rest, stride = sizes.simplify(wanted - form.rest, ranges), sizes.ONE
    while axes:
        axis = next((a for a in axes if form.coefficients[a.symbol] == stride), None)
        if axis is None:
            raise Unfit("the store's strides are not those of a dense buffer")
        axes.remove(axis)
        mapping[axis.symbol] = rest if not axes else sizes.modulo(rest, axis.size, ranges)
        rest = sizes.floor_div(rest, axis.size, ranges)
        stride = sympy.expand(stride * axis.size)
    if any(sizes.has_division(e) for e in mapping.values()):
        raise Unfit("the element read needs a division")
    return mapping
