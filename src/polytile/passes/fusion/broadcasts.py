"""Stores costly values that many points share, instead of recomputing them at every point.

    loop a for p0, p1, p2                              loop a_shared for p0, p2
      t = rsqrt var[p0, p2]                        →     shared[p0, p2] = rsqrt var[p0, p2]
      out[p0, p1, p2] = mul x[p0, p1, p2] t            loop a for p0, p1, p2
                                                         out[p0, p1, p2] = mul x[p0, p1, p2] shared[p0, p2]

The pass applies to pointwise CPU loops only, and to values that vary along the contiguous axis of the results, such as
per-channel values in channels-last layout. Generated code already hoists values that are constant along that axis. A GPU kernel
can afford the computation, and another launch costs more. The new loop is usually fused with the one that computes its operands.
A loop that is one operator of ATen's stays whole, as ATen's call is a candidate of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import sympy
import torch

from polytile import options
from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.expr import Load, Node, Op
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Operation, Program
from polytile.passes.fusion import cost

COSTLY = 6.0
"""Cost, in multiply-adds of the operation table, from which a value is stored; it corresponds to a square root and a division.

For the final step of a channels-last GroupNorm on one thread, storing them instead of recomputing them at every point takes 6.4
instead of 12.9 µs for 2×64×16×16, and 175 instead of 224 µs for 8×64×32×32, which exceeds the L2 cache.
"""

SHARERS = 4
"""Minimum number of points, at stand-in sizes, that share a value."""

STORABLE = (torch.float32, torch.float64)


def store_broadcasts(program: Program) -> Program:
    """`program` with the costly values that many points of a loop share computed by loops of their own."""
    operations: list[Operation] = []
    buffers = dict(program.buffers)
    for operation in program.operations:
        if isinstance(operation, Loop) and _pointwise(operation, buffers):
            made = list(_shared(operation, buffers))
            operations += [loop for loop, _ in made]
            operation = operation.exchange({id(loop.stores[0].value): load for loop, load in made}) if made else operation
        operations.append(operation)
    return replace(program, operations=tuple(operations), buffers=buffers)


def _pointwise(loop: Loop, buffers: dict[str, Buffer]) -> bool:
    on_cpu = all(buffers[name].device.type == "cpu" for name in loop.writes()) and not options.get("interpret")
    return on_cpu and not loop.reduced and not loop.library and not loop.reads() & loop.writes()


def _shared(loop: Loop, buffers: dict[str, Buffer]) -> Iterator[tuple[Loop, Load]]:
    """For each value to be stored, a loop that stores it and the load that replaces it. Adds their buffers to `buffers`."""
    beside = {a.symbol for a in loop.axes if any(sizes.coefficient(s.index, a.symbol) == 1 for s in loop.stores)}
    device = buffers[loop.stores[0].buffer].device
    for number, value in enumerate(_largest(loop, beside)):
        axes = _axes_of(loop, value)
        name = f"{loop.name}_shared{number}"
        extents = tuple(a.size for a in axes)
        buffer = Buffer(name, value.dtype, extents, sizes.contiguous_strides(extents), device)
        buffers[name] = buffer
        index = buffer.index(tuple(a.symbol for a in axes))
        yield Loop(name, axes, (), (Store(name, index, value),), loop.origins), expr.load(value.dtype, name, index)


def _largest(loop: Loop, beside: set[sympy.Symbol]) -> list[Node]:
    """The values to store, without those that are only operands of another one."""
    largest, seen, stack = [], set(), list(loop.roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if _worth_storing(loop, node, beside):
            largest.append(node)
        else:
            stack.extend(node.children)
    return largest


def _worth_storing(loop: Loop, value: Node, beside: set[sympy.Symbol]) -> bool:
    if not isinstance(value, Op) or value.dtype not in STORABLE:
        return False
    nodes = list(expr.walk(value))
    plain = all(not (isinstance(n, Load) and (n.indirect or n.mask is not None)) for n in nodes)
    plain = plain and not any(expr.is_check(n) for n in nodes)
    if not plain or not any(isinstance(n, Load) for n in nodes) or cost.compute(value) < COSTLY:
        return False
    axes = _axes_of(loop, value)
    others = prod(cost.estimate(a.size) for a in loop.axes if a not in axes)
    return bool(beside & {a.symbol for a in axes}) and others >= SHARERS


def _axes_of(loop: Loop, value: Node) -> tuple[Axis, ...]:
    used = expr.free_symbols(value)
    return tuple(a for a in loop.axes if a.symbol in used)
