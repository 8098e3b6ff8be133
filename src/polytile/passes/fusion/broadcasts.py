"""Costly values that many points share, computed once and stored, instead of at every point.

    loop a for p0, p1, p2                              loop a_shared for p0, p2
      t = rsqrt var[p0, p2]                        →     shared[p0, p2] = rsqrt var[p0, p2]
      out[p0, p1, p2] = mul x[p0, p1, p2] t            loop a for p0, p1, p2
                                                         out[p0, p1, p2] = mul x[p0, p1, p2] shared[p0, p2]

Only of pointwise loops on a CPU, and of values that vary along the axis on which results lie side by side, as a channel's do
where channels come last: what that axis has in common generated code computes once for each of its runs. A GPU's kernels have
time for it, and another launch costs more. The new loop mostly becomes part of the one that its operands come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import sympy
import torch

from polytile import options
from polytile.ir import expr, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.program import Axis, Buffer, Loop, Operation, Program, Store
from polytile.passes.fusion import cost

COSTLY = 6.0
"""Multiply-adds, as in the table of operations, from which a value is stored: a square root and a division. What a GroupNorm with
channels last does last takes 12.9 µs on one thread with them at every point of 2×64×16×16, 6.4 with them stored; of 8×64×32×32,
which the second-level cache does not hold, 224 and 175."""

SHARERS = 4
"""Points, by stand-in sizes, that must share a value."""

STORABLE = (torch.float32, torch.float64)


def store_broadcasts(program: Program) -> Program:
    """`program` with costly values that many points of a loop share made by a loop of their own."""
    operations: list[Operation] = []
    buffers = dict(program.buffers)
    for operation in program.operations:
        if isinstance(operation, Loop) and _pointwise(operation, buffers):
            made = list(_shared(operation, buffers))
            operations += [loop for loop, _ in made]
            operation = _with_loads(operation, {id(loop.stores[0].value): load for loop, load in made})
        operations.append(operation)
    return replace(program, operations=tuple(operations), buffers=buffers)


def _pointwise(loop: Loop, buffers: dict[str, Buffer]) -> bool:
    on_cpu = all(buffers[name].device.type == "cpu" for name in loop.writes()) and not options.get("interpret")
    return on_cpu and not loop.reduced and not loop.reads() & loop.writes()


def _shared(loop: Loop, buffers: dict[str, Buffer]) -> Iterator[tuple[Loop, Load]]:
    """A loop for each value to be stored, and the load that stands for it; `buffers` gets theirs."""
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
    """The values to be stored: no operand of another such value."""
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


def _with_loads(loop: Loop, loads: dict[int, Load]) -> Loop:
    if not loads:
        return loop

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        return loads[id(node)] if id(node) in loads else expr.rebuild(node, children)

    return loop.map_roots(lambda roots: expr.rewrite(roots, rule))
