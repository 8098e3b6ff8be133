"""Makes constant extents of parallel axes integer arguments, so that loops that differ only in them share one kernel.

    a1[p0] = rsqrt(a0[p0]),  p0 < 48                      p0 < n0                             called with n0 = 48
    a1[256*p0 + p1] = 2*a0[256*p0 + p1],  p1 < 256        a1[n1*p0 + p1],  p1 < n1                 with n1 = 256

The norms of a network differ in their numbers of channels, an optimizer's steps in the sizes of their weights. Strides that are
multiples of an extent become multiples of the argument.

An extent stays in the text where vectors depend on it: along a reduced axis, whose rows are held in registers; below SHORT, too
few for a vector; where values or divisions depend on the position along the axis; and below LONG where vectors run along rows
that follow each other. Rows of few vectors are slower if their length is an argument; long rows, and vectors that run across
the columns of a reduction, are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from polytile.ir import expr, sizes
from polytile.ir.loop import Axis, Loop
from polytile.schedule.nest import SHORT, Form, nest_of

LONG = 128
"""The least length of such rows that becomes an argument."""

Extents = Mapping[int, sympy.Symbol]
"""The symbol that stands for each extent, largest extents first."""


def extents_of(loop: Loop) -> Extents:
    """The constant extents of `loop` that its kernel can take as arguments."""
    constant = [axis for axis in loop.axes if axis.size.is_Integer and axis.size >= SHORT]
    if not constant:
        return {}
    nest = nest_of(loop)
    rows = nest.vec if nest.form is Form.POINTWISE and nest.outer else None
    able = [axis for axis in constant if (axis is not rows or axis.size >= LONG) and _is_plain(loop, axis)]
    kept = {axis.size for axis in loop.axes + loop.reduced if axis not in able}
    constants = sorted({int(axis.size) for axis in able if axis.size not in kept}, reverse=True)
    extents = {size: sympy.Symbol(f"extent{k}", integer=True, positive=True) for k, size in enumerate(constants)}
    same = nest_of(with_extents(loop, extents)).vec.symbol == nest.vec.symbol
    return extents if same else {}


def _is_plain(loop: Loop, axis: Axis) -> bool:
    """Whether only the places of accesses depend on the position along `axis`, and those linearly."""
    places = [access.index for access in loop.accesses()]
    inside = [index for node in expr.walk(*loop.roots) if not isinstance(node, expr.Load) for index in node.indices]
    linear = all(sizes.coefficient(index, axis.symbol) is not None for index in places)
    return linear and not any(axis.symbol in sizes.symbols(index) for index in inside)


def with_extents(loop: Loop, extents: Extents) -> Loop:
    """`loop` with the symbols of `extents` in its parallel axes and accesses."""
    if not extents:
        return loop

    def rule(node: expr.Node, children: tuple[expr.Node, ...]) -> expr.Node:
        return expr.rebuild(node, children, lambda index: in_extents(index, extents))

    axes = tuple(Axis(a.symbol, in_extents(a.size, extents) if a.size.is_Integer else a.size) for a in loop.axes)
    places = {store.index: in_extents(store.index, extents) for store in loop.stores}
    return replace(loop.map_roots(lambda roots: expr.rewrite(roots, rule), places.__getitem__), axes=axes)


def in_extents(number: sympy.Expr, extents: Extents) -> sympy.Expr:
    """`number`, a polynomial, with each coefficient that is a multiple of an extent as a multiple of its symbol."""
    terms = []
    for term in sympy.Add.make_args(number):
        coefficient, rest = term.as_coeff_Mul()
        size = next(
            (size for size in extents if coefficient.is_Integer and coefficient and coefficient % size == 0), None
        )
        terms.append(term if size is None else (coefficient // size) * extents[size] * rest)
    return sympy.Add(*terms)
