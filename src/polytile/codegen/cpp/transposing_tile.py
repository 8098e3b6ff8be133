"""The transposing tile of a pointwise loop: which accesses lie along another axis than the vector's, so that square tiles of them
are transposed in registers.

TILED    the vector axis as it is: transposed operands
ACROSS   the vector axis is so short that most lanes would be empty: vectors run along another axis, and whatever lies along the
         short one is transposed
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polytile.codegen.cpp.lanes import NARROWEST, bytes_of, lane_bytes
from polytile.codegen.cpp.scatter import scattered
from polytile.ir import sizes
from polytile.ir.expr import Load
from polytile.ir.program import Axis, Store
from polytile.schedule.cpu import Lanes
from polytile.schedule.nest import Form, Nest


@dataclass(frozen=True)
class TransposingTile:
    """A layout whose points are taken by square tiles of the vector axis and `axis`, and what lies along `axis` in memory."""

    nest: Nest
    axis: Axis
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]

    @property
    def transposed(self) -> tuple[Load | Store, ...]:
        return (*self.loads, *self.stores)


def operand_tile(nest: Nest) -> TransposingTile | None:
    """The tile of the vector axis and the one along which the most operands lie; None where there is none."""
    flat = replace(nest, cutting=False)  # sweeps of tiles are too short to be cut
    tiles = [s for s in (_tile(flat, axis) for axis in nest.outer) if s is not None and s.loads]
    return max(tiles, key=lambda s: len(s.transposed), default=None)


def short_row_tile(nest: Nest) -> TransposingTile | None:
    """The tile with vectors along the axis for which the most accesses can be transposed; None where there is none."""
    tiles = []
    for vec in nest.outer:
        outer = (*(a for a in nest.outer if a is not vec), nest.vec)
        tiles.append(_tile(replace(nest, vec=vec, outer=outer, cutting=False), nest.vec))
    return max((s for s in tiles if s is not None and s.transposed), key=lambda s: len(s.transposed), default=None)


TILES = {Lanes.TILED: operand_tile, Lanes.ACROSS: short_row_tile}


def tile_of(nest: Nest, lanes: Lanes) -> TransposingTile | None:
    """The tile of a pointwise loop whose vectors have these lanes; None where it has none."""
    return TILES[lanes](nest) if lanes in TILES else None


def _tile(nest: Nest, axis: Axis) -> TransposingTile | None:
    """The tile of the vector axis of `nest` and `axis`; None where it would not be a square of registers."""
    dependent = nest.vec.symbol in axis.size.free_symbols or axis.symbol in nest.vec.size.free_symbols
    width = lane_bytes(nest)
    if nest.form is not Form.POINTWISE or dependent or scattered(nest.loop) or width < NARROWEST:
        return None
    loads = tuple(n for n in nest.needed if isinstance(n, Load) and _lies_along(n, axis, nest.vec))
    along = (s for s in nest.loop.stores if _lies_along(s, axis, nest.vec))
    stores = tuple(s for s in along if bytes_of(s.value) <= width)
    return TransposingTile(nest, axis, loads, stores)


def _lies_along(access: Load | Store, axis: Axis, vec: Axis) -> bool:
    strided = sizes.coefficient(access.index, vec.symbol) not in (None, 0, 1)
    plain = not access.indirect and access.mask is None
    return plain and strided and sizes.coefficient(access.index, axis.symbol) == 1
