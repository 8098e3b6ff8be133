"""Requirements on example arguments of a loop: the lengths of its tensors, and the ranges of those that hold indices or
divisors."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from polytile.ir import expr, sizes
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import index_limit


def lengths(kernel: LoopKernel, values: Mapping[sympy.Symbol, int]) -> dict[str, int]:
    """Number of elements of each tensor that the loop reaches at these sizes.

    It is 0 for a loop without points, and for a tensor that is accessed only along an axis without points, such as the
    result of a scan of nothing.
    """
    ranges = {a.symbol: sizes.evaluate(a.size, values) for a in kernel.loop.axes + kernel.loop.reduced}
    empty = not all(ranges[a.symbol] for a in kernel.loop.axes)
    accesses = [] if empty else list(kernel.loop.accesses())
    made = [access for access in accesses if all(ranges.get(s, 1) for s in access.index.free_symbols)]
    unreached = {access.buffer for access in accesses} - {access.buffer for access in made}
    extents: dict[str, int] = {t.name: 0 if empty or t.name in unreached else 1 for t in kernel.tensors}
    for access in made:
        top = {s: max(0, ranges[s] - 1) for s in access.index.free_symbols if s in ranges}
        for k, node in enumerate(access.indirect):
            top[expr.indirect_symbol(k)] = max(0, _index_limit(node, values) - 1)
        extents[access.buffer] = max(extents[access.buffer], farthest(access.index, values, top) + 1)
    return extents


def farthest(index: sympy.Expr, values: Mapping[sympy.Symbol, int], top: Mapping[sympy.Symbol, int]) -> int:
    """The largest value of an index that is monotonic in each symbol of `top`, which runs from 0 to the given maximum."""
    place, far = dict(top), sizes.evaluate(index, {**values, **top})
    for each in top:
        other = sizes.evaluate(index, {**values, **place, each: 0})
        if other > far:
            place[each], far = 0, other
    return far


def index_ends(kernel: LoopKernel, values: Mapping[sympy.Symbol, int]) -> dict[str, int]:
    """The tensors whose elements are indices, and the exclusive upper bound of each."""
    ends: dict[str, int] = {}
    for node in expr.walk(*kernel.loop.roots):
        if isinstance(node, expr.Op) and node.name == "check_index":
            read, limit = expr.loads(node.args[0]), max(1, _index_limit(node, values))
            as_it_is = all(below.name in UNCHANGED for below in expr.walk(node.args[0]) if isinstance(below, expr.Op))
            if len(read) == 1 and as_it_is:
                ends[read[0].buffer] = min(limit, ends.get(read[0].buffer, limit))
    return ends


UNCHANGED = ("where", "lt", "ne", "cast")
"""Operations that leave a non-negative index unchanged on its way to its check."""


def _index_limit(node: expr.Node, values: Mapping[sympy.Symbol, int]) -> int:
    """The size that an indirect index is checked against; 1 if no check is visible."""
    limit = index_limit(node)
    return 1 if limit is None else sizes.evaluate(limit, values)


def divisors(kernel: LoopKernel) -> set[str]:
    """The tensors whose elements are divisors, and must not be 0."""
    checks = [node for node in expr.walk(*kernel.loop.roots) if isinstance(node, expr.Op) and node.name == "check_divisor"]
    return {load.buffer for check in checks for load in expr.loads(check)}
