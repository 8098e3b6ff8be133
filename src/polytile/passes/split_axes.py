"""Splits axes to remove divisions and moduli from indices.

    loop for p0 < 6*s0                          loop for p0 < s0, p1 < 6
      out[p0] = x[(p0 % 6)*s0 + p0 // 6]   →      out[6*p0 + p1] = x[p1*s0 + p0]

An axis is split if its size divides exactly and fewer divisions remain. The reduced axis of a scan is never split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from polytile.ir import sizes
from polytile.ir.loop import Axis, Loop
from polytile.ir.program import Program
from polytile.passes.loops import Mapped, canonical, has_scan, indices, kept_axes, linear, map_loops, reindexed

_DIVISIONS = (FloorDiv, Mod, PythonMod, ModularIndexing)
MAX_SPLITS = 12
OUTER, INNER = sizes.axis("outer"), sizes.axis("inner")


def split_axes(program: Program) -> Program:
    """`program` with the axes of every loop split where that removes divisions from its indices."""
    return map_loops(program, split_loop)


def split_loop(loop: Loop) -> Loop:
    """The loop with axes split until no index has a division that a split removes."""
    return traced_split(loop)[0]


def traced_split(loop: Loop) -> tuple[Loop, dict[sympy.Symbol, sympy.Expr]]:
    """The loop with its axes split, and the new axes as functions of the old ones (floor divisions and moduli)."""
    origin: dict[sympy.Symbol, sympy.Expr] = {a.symbol: a.symbol for a in loop.axes + loop.reduced}
    before = _divisions(loop)
    if before:
        loop = reindexed(loop, loop.axes, loop.reduced, {})
        before = _divisions(loop)
    for _ in range(MAX_SPLITS):
        better = next((new for new in _candidates(loop, before) if len(_divisions(new.loop)) < len(before)), None)
        if better is None:
            break
        loop, origin = better.renamed(origin)
        before = _divisions(loop)
    return loop, origin


@dataclass(frozen=True)
class _Split:
    """`loop` with `axis` split into OUTER and INNER, where INNER has `inner` elements."""

    loop: Loop
    axis: sympy.Symbol
    inner: sympy.Expr

    def renamed(self, origin: Mapped) -> tuple[Loop, dict[sympy.Symbol, sympy.Expr]]:
        """The loop with canonical axis names, and its axes as functions of the original ones. `origin` is that mapping before the
        split."""
        parts = {OUTER: FloorDiv(origin[self.axis], self.inner), INNER: Mod(origin[self.axis], self.inner)}
        after = canonical(self.loop)
        axes, reduced = kept_axes(self.loop)
        pairs = zip(after.axes + after.reduced, axes + reduced, strict=True)
        return after, {new.symbol: parts.get(old.symbol, origin.get(old.symbol, sizes.ZERO)) for new, old in pairs}


def _divisions(loop: Loop) -> set[sympy.Expr]:
    """Divisions and moduli of loop axes among the indices."""
    axes = loop.ranges.keys()
    atoms = set().union(*(index.atoms(*_DIVISIONS) for index in indices(loop) if sizes.has_division(index)))
    return {division for division in atoms if sizes.symbols(division) & axes}


def _candidates(loop: Loop, divisions: set[sympy.Expr]) -> Iterator[_Split]:
    """The loop with one axis split at the divisor of one of its divisions, the simplest division first."""
    tried = set()
    whole = {a.symbol for a in loop.reduced} if has_scan(loop) else set()
    for division in sorted(divisions, key=lambda e: (len(sizes.structure(e)), sizes.structure(e))):
        numerator, divisor = division.args[0], division.args[1]
        for axis in loop.axes + loop.reduced:
            form = linear(numerator, (axis.symbol,)) if not numerator.has(*_DIVISIONS) else None
            if form is None or axis.symbol not in form.coefficients or axis.symbol in whole:
                continue
            inner = sizes.divide(divisor, form.coefficients[axis.symbol])
            if inner is None or inner == 1 or (axis, inner) in tried:
                continue
            tried.add((axis, inner))
            outer = sizes.divide(sizes.expand(axis.size), inner)
            if outer is not None and outer != 1:
                yield _Split(_split(loop, axis, outer, inner), axis.symbol, inner)


def _split(loop: Loop, axis: Axis, outer: sympy.Expr, inner: sympy.Expr) -> Loop:
    """Replace `axis` by (outer, inner) with axis = outer·size(inner) + inner."""
    pair = (Axis(OUTER, outer), Axis(INNER, inner))
    mapping = {axis.symbol: pair[0].symbol * inner + pair[1].symbol}

    def group(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(new for a in axes for new in (pair if a is axis else (a,)))

    return reindexed(loop, group(loop.axes), group(loop.reduced), mapping)
