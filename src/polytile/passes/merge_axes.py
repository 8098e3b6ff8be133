"""Merges axes and chooses their order.

    loop for p0 < s0, p1 < s1                loop for p0 < s0*s1
      out[p0*s1 + p1] = x[p0*s1 + p1]   →      out[p0] = x[p0]

Two axes of a group merge if every index is linear in both and the strides are compatible: stride(outer) =
size(inner)·stride(inner). Axes of size 1 are dropped.

A pointwise CPU loop that compares only the outer axis, as concatenation and padding do, compares both axes after the merge: p0 <
s2 becomes p0·s1 + p1 < s2·s1. Vectors then run across contiguous rows. On a GPU the comparison is kept: it is uniform along a
row, so the row can be loaded in full vectors.

Finally the axes of each group are ordered: innermost is the axis with the most unit-stride accesses, weighted by bytes; the
others follow by decreasing stride in the loop's largest access.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import sympy
import torch

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Node, Op
from polytile.ir.loop import Axis, Loop
from polytile.ir.program import Program
from polytile.passes.fusion.cost import estimate, touched
from polytile.passes.loops import canonical, has_scan, indices, linear, map_loops, reindexed


def merge_axes(program: Program) -> Program:
    """`program` with the axes of every loop merged and ordered. Epilogues keep (batch, m, n)."""

    def merged(loop: Loop) -> Loop:
        on_cpu = all(program.buffers[store.buffer].device.type == "cpu" for store in loop.stores)
        return merge_loop(loop, compared=on_cpu and not loop.reduced)

    return map_loops(program, merged)


def merge_loop(loop: Loop, compared: bool = False) -> Loop:
    """One loop with its axes merged pairwise, and the remaining ones ordered. With `compared`, axes also merge if only the outer
    one is compared."""
    loop = canonical(loop)
    while True:
        merged = _merge_once(loop, compared)
        if merged is None:
            return _ordered(loop)
        loop = canonical(merged)


def _merge_once(loop: Loop, compared: bool) -> Loop | None:
    """The loop with one pair of axes merged; None if no pair can be."""
    groups = [loop.axes] if has_scan(loop) else [loop.axes, loop.reduced]
    for group in groups:
        for inner in reversed(group):
            for outer in group:
                if outer is inner or not _fit(_accessed(loop), outer, inner):
                    continue
                same = loop if _fit(indices(loop), outer, inner) or not compared else _comparing_both(loop, outer, inner)
                if _fit(indices(same), outer, inner):
                    return _merged(same, outer, inner)
    return None


MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _comparing_both(loop: Loop, outer: Axis, inner: Axis) -> Loop:
    """Scale each comparison of `outer` to a comparison of outer·size(inner) + inner:

    p + rest <  0  →  p·n + q + rest·n <  0        p + rest <= 0  →  p·n + q + rest·n <  n        > and >= : the opposites
    """

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        node = expr.rebuild(node, children)
        if not isinstance(node, Op) or node.name not in MIRRORED:
            return node
        sides = [n for n in node.args if isinstance(n, Index | Const) and n.dtype == torch.int64]
        if len(sides) != 2:
            return node
        left, right = (n.expr if isinstance(n, Index) else sympy.Integer(n.value) for n in sides)
        form = linear(sympy.expand(left - right), (outer.symbol, inner.symbol))
        if form is None or set(form.coefficients) != {outer.symbol} or abs(form.coefficients[outer.symbol]) != 1:
            return node
        sign = form.coefficients[outer.symbol]
        name = node.name if sign == 1 else MIRRORED[node.name]
        further = inner.size if name in ("le", "gt") else sizes.ZERO
        limit = sizes.expand(further - sign * form.rest * inner.size)
        both = expr.index_value(sizes.expand(outer.symbol * inner.size + inner.symbol))
        return expr.op("lt" if name in ("lt", "le") else "ge", torch.bool, both, expr.index_value(limit))

    return loop.map_roots(functools.partial(expr.rewrite, rule=rule))


def _accessed(loop: Loop) -> list[sympy.Expr]:
    """The index of every load and store."""
    return [*(load.index for load in expr.loads(*loop.roots)), *(store.index for store in loop.stores)]


def _fit(found: Sequence[sympy.Expr], outer: Axis, inner: Axis) -> bool:
    """Whether all these indices are linear in both axes, with compatible strides."""
    for index in found:
        form = linear(index, (outer.symbol, inner.symbol))
        if form is None:
            return False
        stride = form.coefficients.get(inner.symbol, sizes.ZERO)
        if not sizes.equal(form.coefficients.get(outer.symbol, sizes.ZERO), stride * inner.size):
            return False
    return True


def _merged(loop: Loop, outer: Axis, inner: Axis) -> Loop:
    """Merge the two axes. As every index is linear with compatible strides, setting outer = 0 and inner = the new axis does
    it."""
    new = Axis(inner.symbol, sizes.expand(outer.size * inner.size))

    def group(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(new if a is inner else a for a in axes if a is not outer)

    return reindexed(loop, group(loop.axes), group(loop.reduced), {outer.symbol: sizes.ZERO})


def _ordered(loop: Loop) -> Loop:
    accesses = _accesses(loop)
    axes, reduced = (_order(group, accesses) for group in (loop.axes, loop.reduced))
    if (axes, reduced) == (loop.axes, loop.reduced):
        return loop
    return canonical(reindexed(loop, axes, reduced, {}))


Access = tuple[int, sympy.Expr]


def _accesses(loop: Loop) -> list[Access]:
    """(elements touched, index) of every store and load, the largest first."""
    points = {a.symbol: estimate(a.size) for a in loop.axes + loop.reduced}
    accesses = [(touched(s.index, points, False), s.index) for s in loop.stores]
    accesses += [(touched(n.index, points, False), n.index) for n in expr.loads(*loop.roots)]
    return sorted(accesses, key=lambda access: -access[0])


def _order(group: tuple[Axis, ...], accesses: list[Access]) -> tuple[Axis, ...]:
    if len(group) < 2:
        return group
    symbols = tuple(a.symbol for a in group)
    forms = [(weight, form) for weight, index in accesses if (form := linear(index, symbols)) is not None]
    unit = {s: sum(w for w, form in forms if form.coefficients.get(s) == 1) for s in symbols}
    innermost = max(reversed(group), key=lambda a: unit[a.symbol])
    largest = next((form.coefficients for _, form in forms if len(form.coefficients) == len(group)), {})
    outer = [a for a in group if a is not innermost]
    outer.sort(key=lambda a: -estimate(largest.get(a.symbol, sizes.ZERO)))
    return (*outer, innermost)
