"""Fewer and longer axes, in the best order.

    loop for p0 < s0, p1 < s1                loop for p0 < s0*s1
      out[p0*s1 + p1] = x[p0*s1 + p1]   →      out[p0] = x[p0]

Two axes of one group are merged where every index is linear in both and strides fit: stride(outer) =
size(inner)·stride(inner). Axes of size 1 go. Then the axes of each group are put in order: innermost the axis with
the most unit-stride accesses (bytes count), outside it by falling stride in the loop's largest access.
"""

from __future__ import annotations

import sympy

from polytile.ir import expr, sizes
from polytile.ir.program import Axis, Loop, Program
from polytile.passes.fusion.cost import estimate, touched
from polytile.passes.loops import canonical, has_scan, indices, linear, map_loops, reindexed


def merge_axes(program: Program) -> Program:
    """`program` with the axes of every loop merged and ordered; epilogues keep (batch, m, n)."""
    return map_loops(program, merge_loop)


def merge_loop(loop: Loop) -> Loop:
    """One loop with its axes merged, pair after pair, and what is left put in order."""
    loop = canonical(loop)
    while True:
        merged = _merge_once(loop)
        if merged is None:
            return _ordered(loop)
        loop = canonical(merged)


def _merge_once(loop: Loop) -> Loop | None:
    """The loop with one pair of axes merged; None if no pair can be."""
    groups = [loop.axes] if has_scan(loop) else [loop.axes, loop.reduced]
    for group in groups:
        for inner in reversed(group):
            for outer in group:
                if outer is not inner and _mergeable(loop, outer, inner):
                    return _merged(loop, outer, inner)
    return None


def _mergeable(loop: Loop, outer: Axis, inner: Axis) -> bool:
    for index in indices(loop):
        form = linear(index, (outer.symbol, inner.symbol))
        if form is None:
            return False
        stride = form.coefficients.get(inner.symbol, sizes.ZERO)
        if not sizes.equal(form.coefficients.get(outer.symbol, sizes.ZERO), stride * inner.size):
            return False
    return True


def _merged(loop: Loop, outer: Axis, inner: Axis) -> Loop:
    """One axis for the two: outer = 0 and inner = the new axis, since every index is linear with fitting strides."""
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
    """(elements touched, index) of every load and store, the largest first, stores before loads."""
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
