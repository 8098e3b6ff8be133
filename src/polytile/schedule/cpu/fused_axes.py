"""Fuses two parallel axes that together are contiguous in memory (Halide, TVM: `fuse`).

    loop for p0 < 2, p1 < 4 over r0              loop for p1 < 8 over r0
      sum of x[8*r0 + 4*p0 + p1] * g[p0]   →       sum of x[8*r0 + p1] * g[p1 // 4]

Groups of a few channels, innermost in memory, are too short for vectors, and along any other axis every lane would have
its own cache line. Fused, they fill a vector, and a value shared by a group is repeated in its lanes
(`vload_repeated`).
"""

from __future__ import annotations

from dataclasses import replace

import sympy
from torch.utils._sympy.functions import FloorDiv

from polytile.ir import expr, sizes
from polytile.ir.expr import Load, Scan
from polytile.ir.loop import Axis, Loop
from polytile.schedule.nest import Form, Nest, nest_of

REPEATS = (2, 4, 8)  # possible repetitions of one element in lanes: vectors start at multiples of these


def fuse_axes(loop: Loop) -> Loop:
    """Fuses two parallel axes of `loop` if its vectors then run along them; otherwise returns it unchanged."""
    if not loop.reduced or any(isinstance(node, Scan) for node in expr.walk(*loop.roots)):
        return loop
    for inner in loop.axes:
        for outer in loop.axes:
            if outer is not inner and inner.size in REPEATS:
                fused = _fused(loop, outer, inner)
                if fused is not None and nest_of(fused).vec.symbol == inner.symbol:
                    return fused
    return loop


def _fused(loop: Loop, outer: Axis, inner: Axis) -> Loop | None:
    """The loop with one axis, named like `inner`, instead of the two; None if an index is not linear in them, or if
    their strides do not fit."""
    both = {outer.symbol, inner.symbol}
    group = FloorDiv(inner.symbol, inner.size)
    mapping: dict[sympy.Expr, sympy.Expr] = {}
    for index in _indices(loop):
        outside, inside = (sizes.coefficient(index, a.symbol) for a in (outer, inner))
        if outside is None or inside is None or (outside.free_symbols | inside.free_symbols) & both:
            return None
        if not sizes.equal(outside, inside * inner.size) and inside != 0:
            return None
        mapping[index] = index.xreplace({outer.symbol: group if inside == 0 else sizes.ZERO})
    one = Axis(inner.symbol, sympy.expand(outer.size * inner.size))
    axes = tuple(one if a is inner else a for a in loop.axes if a is not outer)
    new = replace(loop, axes=axes)
    return new.map_roots(lambda roots: expr.map_indices(roots, mapping.__getitem__), mapping.__getitem__)


def _indices(loop: Loop) -> set[sympy.Expr]:
    return {index for node in expr.walk(*loop.roots) for index in node.indices} | {s.index for s in loop.stores}


def repeats(nest: Nest, load: Load) -> int | None:
    """Number of consecutive lanes with the same element of `load`, if elements are repeated in order; else None. Only
    vectors of columns start at multiples of such a number."""
    vec = nest.vec.symbol
    if nest.form is not Form.COLUMN or load.indirect or load.mask is not None:
        return None
    divisions = [d for d in load.index.atoms(FloorDiv) if vec in d.free_symbols]
    if len(divisions) != 1 or divisions[0].args[0] != vec or divisions[0].args[1] not in REPEATS:
        return None
    group = sympy.Dummy("group", integer=True)
    index = load.index.xreplace({divisions[0]: group})
    return int(divisions[0].args[1]) if vec not in index.free_symbols and sizes.coefficient(index, group) == 1 else None
