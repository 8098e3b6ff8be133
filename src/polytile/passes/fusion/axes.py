"""Unifies two loops' iteration domains: one set of axes for both, matched through an index into a shared buffer.

Axes are matched by their stride in the buffer, not by position, so transposed or reshaped accesses match too. If one loop has an
axis of size a·b where the other has axes of sizes a and b, the larger axis is split:

    first  p0 < s0*s1, p1 < 64     index p0*64 + p1
    second p0 < s0, p1 < s1, p2 < 64    index p0*s1*64 + p1*64 + p2
    →      u0 < s0, u1 < s1, u2 < 64;   first: p0 = u0*s1 + u1, p1 = u2;   second: p0 = u0, p1 = u1, p2 = u2

No division or modulus is ever needed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from polytile.ir import divisions, sizes
from polytile.ir.loop import Axis
from polytile.passes.loops import linear

Pair = tuple[sympy.Expr, sympy.Expr]


@dataclass(frozen=True)
class Shared:
    """One axis of the common domain, with the axis of each loop that it is part of, or None if that loop does not have it."""

    axis: Axis
    first: sympy.Symbol | None
    second: sympy.Symbol | None


@dataclass(frozen=True)
class Unified:
    """The common domain, and each loop's axes as linear functions of it."""

    shared: tuple[Shared, ...]
    first: Mapping[sympy.Symbol, sympy.Expr]
    second: Mapping[sympy.Symbol, sympy.Expr]

    @property
    def ranges(self) -> dict[sympy.Symbol, sympy.Expr]:
        return {s.axis.symbol: s.axis.size for s in self.shared}


@dataclass
class _Piece:
    """A part of an axis: axis = Σ piece·weight over its pieces. `match` is the equal piece of the other loop."""

    axis: sympy.Symbol
    size: sympy.Expr
    weight: sympy.Expr
    match: _Piece | None = None


Strides = dict[sympy.Expr, _Piece]


@functools.lru_cache(maxsize=20_000)
def unify(first: tuple[Axis, ...], second: tuple[Axis, ...], pairs: tuple[Pair, ...]) -> Unified:
    """The common domain of two loops.

    `pairs` holds indices, one from each loop, into the same buffer. Axes that no pair matches stay separate. The caller must
    check whether the indices of a pair are equal afterwards.
    """
    sides = [_whole(first), _whole(second)]
    for one, other in pairs:
        _match(sides[0], sides[1], _strides(sides[0], one, first), _strides(sides[1], other, second))
    return _named(first, second, sides)


def _whole(axes: tuple[Axis, ...]) -> list[_Piece]:
    return [_Piece(a.symbol, divisions.simplify(a.size, {}), sizes.ONE) for a in axes if a.size != 1]


def _match(left: list[_Piece], right: list[_Piece], mine: Strides | None, theirs: Strides | None) -> None:
    """Match pieces of equal stride, and split the larger one if the sizes differ."""
    while mine is not None and theirs is not None:
        stride = next((stride for stride in mine if stride in theirs), None)
        if stride is None:
            return
        a, b = mine.pop(stride), theirs.pop(stride)
        fits = a.size == b.size or _split(left, mine, a, b.size, stride) or _split(right, theirs, b, a.size, stride)
        if not fits:
            return
        a.match, b.match = b, a


def _strides(pieces: list[_Piece], index: sympy.Expr, axes: tuple[Axis, ...]) -> Strides | None:
    """Unmatched pieces by their stride in `index`; None if the index is not linear or two pieces have the same stride."""
    form = linear(index, tuple(a.symbol for a in axes))
    if form is None:
        return None
    by_stride: Strides = {}
    for piece in pieces:
        if piece.match is not None or piece.axis not in form.coefficients:
            continue
        stride = sizes.expand(form.coefficients[piece.axis] * piece.weight)
        if stride in by_stride:
            return None
        by_stride[stride] = piece
    return by_stride


def _split(pieces: list[_Piece], strides: Strides, piece: _Piece, inner: sympy.Expr, stride: sympy.Expr) -> bool:
    """Split `piece`, already removed from `strides`, into an outer piece and an inner one of size `inner`; `piece` becomes the
    inner one."""
    count = sizes.divide(piece.size, inner)
    outer_stride = sizes.expand(stride * inner)
    if count is None or outer_stride in strides:
        return False
    outer = _Piece(piece.axis, count, sizes.expand(piece.weight * inner))
    pieces.insert(pieces.index(piece), outer)
    strides[outer_stride] = outer
    piece.size = inner
    return True


def _named(first: tuple[Axis, ...], second: tuple[Axis, ...], sides: list[list[_Piece]]) -> Unified:
    """Give every piece a symbol, shared by matched pieces: first the first loop's, then those that only the second loop has."""
    shared: list[Shared] = []
    symbols: dict[int, sympy.Symbol] = {}
    for piece in sides[0] + [p for p in sides[1] if p.match is None]:
        axis = Axis(sizes.axis(f"u{len(shared)}"), piece.size)
        symbols[id(piece)] = axis.symbol
        if piece.match is not None:
            symbols[id(piece.match)] = axis.symbol
            shared.append(Shared(axis, piece.axis, piece.match.axis))
        else:
            of_first = any(piece is p for p in sides[0])
            shared.append(Shared(axis, piece.axis if of_first else None, None if of_first else piece.axis))
    return Unified(tuple(shared), _mapping(first, sides[0], symbols), _mapping(second, sides[1], symbols))


def _mapping(axes: tuple[Axis, ...], pieces: list[_Piece], symbols: dict[int, sympy.Symbol]) -> dict[sympy.Symbol, sympy.Expr]:
    total = {a.symbol: sizes.ZERO for a in axes}
    for piece in pieces:
        total[piece.axis] += piece.weight * symbols[id(piece)]
    return total
