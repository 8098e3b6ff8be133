"""Transposition in registers, for vectors whose lanes are not contiguous points in memory.

TILED    points: the vector axis is kept, with square tiles of it and of the axis along which operands are contiguous
ACROSS   points: the vector axis is so short that most lanes would be empty; vectors run along another axis, and
         accesses along the short one are transposed
         rows: the same. A horizontal reduction of a short row costs more than its elements. Here L rows are processed
         together: the reduced axis runs serially, and every lane has its own row, as in reductions down columns. Values
         that a row reads once, caches for later passes or writes are in tiles of L × (length of a row) values
         (`codegen/cpp/support/tile.h`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polytile.ir import sizes
from polytile.ir.expr import Load, Node
from polytile.ir.loop import Axis, Store, element_level
from polytile.schedule.cpu.lanes import NARROWEST, bytes_of, lane_bytes
from polytile.schedule.cpu.scatter import scattered_stores
from polytile.schedule.cpu.schedule import Lanes
from polytile.schedule.cpu.value_cache import cached_values
from polytile.schedule.nest import Form, Nest

LONGEST = 128  # elements of a row: this many vectors stay in the first-level cache
BLOCK_ROWS = 64  # points of the other axis in a block of squares: a few cache lines of each transposed row
BAND = 4  # rows processed together: rows a power of two apart share the few ways of a first-level cache set
BLOCK_BYTES = 16 << 10  # of all tiles of a block: a half or a third of a first-level cache
PIECE = 1024  # elements of the vector axis that a thread takes at a time


@dataclass(frozen=True)
class Transposed:
    """A layout; the accesses that are contiguous along `axis` although the vectors run along another; and the cached
    values, with the pass that makes each. Each of these has a tile."""

    nest: Nest
    axis: Axis
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    cached: Mapping[Node, int] = field(default_factory=dict)

    @property
    def accesses(self) -> tuple[Load | Store, ...]:
        return (*self.loads, *self.stores)

    def block_columns(self, lanes: int) -> int:
        """Number of points of the vector axis in a block, for vectors of `lanes` lanes: a power of two, at least two
        vectors."""
        values = (access if isinstance(access, Load) else access.value for access in self.accesses)
        most = BLOCK_BYTES // (BLOCK_ROWS * sum(bytes_of(value) for value in values))
        return max(2 * lanes, 1 << (most.bit_length() - 1))


def transposed_layout(nest: Nest, lanes: Lanes) -> Transposed | None:
    """The layout of a loop whose vectors have these lanes; None if there is no such layout, or if nothing is transposed."""
    if nest.form is Form.POINTWISE:
        return {Lanes.TILED: _operands, Lanes.ACROSS: _short_points}.get(lanes, _nothing)(nest)
    return _short_rows(nest) if lanes is Lanes.ACROSS else None


def _nothing(nest: Nest) -> None:
    return None


def _operands(nest: Nest) -> Transposed | None:
    """Tiles of the vector axis and of the axis along which the most operands are contiguous."""
    flat = replace(nest, cutting=False)  # sweeps of tiles are too short to be cut
    tiles = [tile for axis in nest.outer if (tile := _tile(flat, axis)) is not None and tile.loads]
    return max(tiles, key=lambda tile: len(tile.accesses), default=None)


def _short_points(nest: Nest) -> Transposed | None:
    """Vectors along the axis for which the most accesses can be transposed."""
    tiles = []
    for vec in nest.outer:
        outer = (*(a for a in nest.outer if a is not vec), nest.vec)
        tile = _tile(replace(nest, vec=vec, outer=outer, cutting=False), nest.vec)
        tiles += [tile] if tile is not None and tile.accesses else []
    return max(tiles, key=lambda tile: len(tile.accesses), default=None)


def _tile(nest: Nest, axis: Axis) -> Transposed | None:
    """The tile of `axis` and the vector axis of `nest`; None if it would not be a square of registers."""
    dependent = nest.vec.symbol in axis.size.free_symbols or axis.symbol in nest.vec.size.free_symbols
    width = lane_bytes(nest)
    if dependent or scattered_stores(nest.loop) or width < NARROWEST:
        return None
    loads = tuple(n for n in nest.needed if isinstance(n, Load) and _is_transposed(n, axis, nest.vec, width))
    return Transposed(nest, axis, loads, tuple(s for s in nest.loop.stores if _is_transposed(s, axis, nest.vec, width)))


def _short_rows(row: Nest) -> Transposed | None:
    """A layout with rows as lanes, if rows have an even stride along some axis. Of several axes, the one with the most
    contiguous accesses, transposed or not; then the innermost."""
    if row.inner or row.form is not Form.ROW or scattered_stores(row.loop):
        return None
    layouts = [layout for axis in reversed(row.outer) if (layout := _rows_along(row, axis)) is not None]
    return max(layouts, key=lambda layout: len(layout.accesses) + _contiguous(layout.nest), default=None)


def _contiguous(nest: Nest) -> int:
    """Number of loads and stores that are contiguous across lanes."""
    places = [n for n in nest.nodes if isinstance(n, Load)] + list(nest.loop.stores)
    return sum(1 for access in places if sizes.coefficient(access.index, nest.vec.symbol) == 1)


def _rows_along(row: Nest, axis: Axis) -> Transposed | None:
    """A layout with the rows along `axis` as lanes."""
    nest = Nest(row.loop, Form.COLUMN, axis, tuple(a for a in row.outer if a is not axis), row.loop.reduced)
    width = lane_bytes(nest)
    if width < NARROWEST or row.vec.size.free_symbols & {axis.symbol}:
        return None
    read = [n for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n)]
    loads = tuple(n for n in read if _is_transposed(n, row.vec, axis, width))
    written = (s for s in row.loop.stores if element_level(row.loop, s) and s.mode == "set")
    stores = tuple(s for s in written if _is_transposed(s, row.vec, axis, width))
    cached = {n: first for n, first in cached_values(row).items() if bytes_of(n) <= width}
    # Rows may be read in parts, the same parts of all rows, like the cells of an adaptive average. Such a square cannot
    # be loaded as a whole, but every lane can load its own element.
    parts = any(n.mask is not None and not nest.is_vector(n.mask) and _lies_along(n, row.vec, axis) for n in read)
    return Transposed(nest, row.vec, loads, stores, cached) if loads or stores or parts else None


def _is_transposed(access: Load | Store, axis: Axis, vec: Axis, width: int) -> bool:
    """Whether the access is contiguous along `axis`, with an even stride from lane to lane along `vec`, and its values
    are no wider than the lanes."""
    value = access if isinstance(access, Load) else access.value
    return _lies_along(access, axis, vec) and access.mask is None and bytes_of(value) <= width


def _lies_along(access: Load | Store, axis: Axis, vec: Axis) -> bool:
    strided = sizes.coefficient(access.index, vec.symbol) not in (None, sizes.ZERO, sizes.ONE)
    return strided and sizes.coefficient(access.index, axis.symbol) == 1 and not access.indirect
