"""Short rows: the lanes of a vector are rows.

A vector along a row of few elements is mostly empty, and putting its lanes together costs more than the elements do. Here L
rows are taken at once and transposed in registers (`support/tile.h`), so that the reduced axis is gone through serially and every
lane has a row of its own, as in reductions down columns. What a row reads from memory once, what it keeps for later passes
and what it writes stand in tiles of L × (length of a row) values.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from polytile.codegen.cpp.lanes import NARROWEST, bytes_of, lane_bytes
from polytile.codegen.cpp.scatter import scattered
from polytile.codegen.cpp.value_cache import cached_values
from polytile.ir import sizes
from polytile.ir.expr import Load, Node
from polytile.ir.program import Axis, Store, element_level
from polytile.schedule.nest import Form, Nest

LONGEST = 128  # elements of a row: so many vectors stay in the first-level cache


@dataclass(frozen=True)
class Transposed:
    """The layout for lanes that are rows, what is transposed on its way in and out, and what is cached, with the pass that makes
    it. Every one of these has a tile."""

    nest: Nest
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    cached: dict[Node, int]


def short_rows(row: Nest) -> Transposed | None:
    """How to go through the rows of `row` by lanes; None where it has none, or has no axis of rows that its elements lie
    along evenly. Of several axes the one along which the most is contiguous, transposed or not; then the innermost."""
    if row.form is not Form.ROW or row.inner or scattered(row.loop):
        return None
    layouts = [t for t in (_along(row, axis) for axis in reversed(row.outer)) if t is not None]
    return max(layouts, key=lambda t: len(t.loads) + len(t.stores) + _contiguous(t.nest), default=None)


def _contiguous(nest: Nest) -> int:
    """How many loads and stores have neighbours in neighbouring lanes."""
    places = [n for n in nest.nodes if isinstance(n, Load)] + list(nest.loop.stores)
    return sum(1 for access in places if sizes.coefficient(access.index, nest.vec.symbol) == 1)


def _along(row: Nest, axis: Axis) -> Transposed | None:
    outer = tuple(a for a in row.outer if a is not axis)
    nest = Nest(row.loop, Form.COLUMN, axis, outer, row.loop.reduced)
    width = lane_bytes(nest)
    if width < NARROWEST or row.vec.size.free_symbols & {axis.symbol}:
        return None
    loads = tuple(n for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n) and _is_transposed(n, row, axis.symbol, width))
    stores = (s for s in row.loop.stores if element_level(row.loop, s) and s.mode == "set")
    transposed = tuple(s for s in stores if _is_transposed(s, row, axis.symbol, width))
    cached = {n: made for n, made in cached_values(row).items() if bytes_of(n) <= width}
    return Transposed(nest, loads, transposed, cached) if loads or transposed or _parts_of_rows(nest, row) else None


def _is_transposed(access: Load | Store, row: Nest, axis: sympy.Symbol, width: int) -> bool:
    """Whether the access runs along the row in memory, and its values are no wider than lanes."""
    value = access if isinstance(access, Load) else access.value
    return _lies_along(access, row, axis) and access.mask is None and bytes_of(value) <= width


def _lies_along(access: Load | Store, row: Nest, axis: sympy.Symbol) -> bool:
    """Whether the access runs along the row in memory, and evenly from row to row along `axis`."""
    strided = sizes.coefficient(access.index, axis) not in (None, sizes.ZERO, sizes.ONE)
    return strided and sizes.coefficient(access.index, row.vec.symbol) == 1 and not access.indirect


def _parts_of_rows(nest: Nest, row: Nest) -> bool:
    """Whether rows are read in parts, the same ones of all rows: a square of those cannot be loaded whole, but every lane its own
    element. So are the cells of an adaptive average."""
    loads = [n for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n)]
    return any(n.mask is not None and not nest.is_vector(n.mask) and _lies_along(n, row, nest.vec.symbol) for n in loads)
