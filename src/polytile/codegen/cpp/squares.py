"""Pointwise loops by squares: which accesses lie along another axis than the vector's, so that squares of them are transposed.

tiled   the vector axis as it is: transposed operands
short   the vector axis is so short that most lanes would be empty: vectors run along another axis, and whatever lies along the
        short one is transposed
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polytile.codegen.cpp.lanes import NARROWEST, bytes_of, lane_bytes
from polytile.codegen.cpp.scatter import scattered
from polytile.ir import sizes
from polytile.ir.expr import Load
from polytile.ir.program import Axis, Store
from polytile.schedule.nest import Form, Nest


@dataclass(frozen=True)
class Squares:
    """A layout whose points are taken by squares of the vector axis and `axis`, and what lies along `axis` in memory."""

    nest: Nest
    axis: Axis
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]

    @property
    def transposed(self) -> tuple[Load | Store, ...]:
        return (*self.loads, *self.stores)


def tiled_squares(nest: Nest) -> Squares | None:
    """Squares of the vector axis and the one along which the most operands lie; None where there are none."""
    flat = replace(nest, cutting=False)  # sweeps of squares are too short to be cut
    found = [s for s in (_squares(flat, axis) for axis in nest.outer) if s is not None and s.loads]
    return max(found, key=lambda s: len(s.transposed), default=None)


def short_squares(nest: Nest) -> Squares | None:
    """Squares with vectors along the axis for which the most accesses can be transposed; None where there is none."""
    found = []
    for vec in nest.outer:
        outer = (*(a for a in nest.outer if a is not vec), nest.vec)
        found.append(_squares(replace(nest, vec=vec, outer=outer, cutting=False), nest.vec))
    return max((s for s in found if s is not None and s.transposed), key=lambda s: len(s.transposed), default=None)


def of_variant(nest: Nest, variant: str) -> Squares | None:
    """The squares of a variant of a pointwise loop; None where it has none."""
    find = {"tiled": tiled_squares, "short": short_squares}.get(variant)
    return find(nest) if find is not None else None


def _squares(nest: Nest, axis: Axis) -> Squares | None:
    """The squares of the vector axis of `nest` and `axis`; None where they would not be squares of registers."""
    dependent = nest.vec.symbol in axis.size.free_symbols or axis.symbol in nest.vec.size.free_symbols
    width = lane_bytes(nest)
    if nest.form is not Form.POINTWISE or dependent or scattered(nest.loop) or width < NARROWEST:
        return None
    loads = tuple(n for n in nest.needed if isinstance(n, Load) and _lies_along(n, axis, nest.vec))
    along = (s for s in nest.loop.stores if _lies_along(s, axis, nest.vec))
    stores = tuple(s for s in along if bytes_of(s.value) <= width)
    return Squares(nest, axis, loads, stores)


def _lies_along(access: Load | Store, axis: Axis, vec: Axis) -> bool:
    strided = sizes.coefficient(access.index, vec.symbol) not in (None, 0, 1)
    plain = not access.indirect and access.mask is None
    return plain and strided and sizes.coefficient(access.index, axis.symbol) == 1
