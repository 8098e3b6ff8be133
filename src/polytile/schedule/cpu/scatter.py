"""Stores that may collide in one element: accumulating stores, and stores at indices that are read from memory.

One thread makes such stores in loop order, unless some axis separates the threads. In that case each thread owns a
range of that axis and iterates over the others in order, so that the order of additions does not depend on the number
of threads.
"""

from __future__ import annotations

import sympy

from polytile.ir import divisions, expr, sizes
from polytile.ir.expr import Const, Index, Node, Op
from polytile.ir.loop import Axis, Loop, Store


def scattered_stores(loop: Loop) -> list[Store]:
    """The stores that may collide in one element."""
    return [s for s in loop.stores if s.mode != "set" or s.indirect]


def accumulates(loop: Loop) -> bool:
    """Whether all stores that may collide accumulate, so that their order hardly matters."""
    return all(s.mode != "set" for s in scattered_stores(loop))


def owner_axis(loop: Loop, vec: Axis) -> Axis | None:
    """The axis to divide over threads: one whose points never share an element. The vector axis is chosen only if there
    is no other, since a long outer axis divides as well and keeps vectors whole."""
    safe = [a for a in loop.axes if all(_keeps_apart(s, a, loop) for s in scattered_stores(loop))]
    outer = [a for a in safe if a is not vec and not (a.size.is_Integer and a.size < 4)]
    return next(iter(outer), vec if vec in safe else None)


def _keeps_apart(store: Store, axis: Axis, loop: Loop) -> bool:
    """Whether points that differ in `axis` never store to the same element, whatever the other axes are:
        index = c·axis + q·(c·size) + rest   with 0 ≤ rest < c   →   axis = index // c % size"""
    c = sizes.coefficient(store.index, axis.symbol)
    if c is None or c == 0 or not sizes.is_nonnegative(c - 1):
        return False
    others = sympy.expand(store.index - c * axis.symbol)
    _, rest = divisions.split_by(others, sympy.expand(c * axis.size))
    bound = divisions.upper_bound(rest, {**loop.ranges, **_indirect_ranges(store)})
    return bound is not None and sizes.is_nonnegative(sympy.expand(c - 1 - bound))


def _indirect_ranges(store: Store) -> dict[sympy.Symbol, sympy.Expr]:
    """Upper bounds of the indirect values, where a check states them."""
    sizes_by_symbol = {}
    for k, node in enumerate(store.indirect):
        size = _checked_size(node)
        if size is not None:
            sizes_by_symbol[expr.indirect_symbol(k)] = size
    return sizes_by_symbol


def _checked_size(node: Node) -> sympy.Expr | None:
    if not (isinstance(node, Op) and node.name == "check_index"):
        return None
    size = node.args[1]
    if isinstance(size, Const):
        return sympy.Integer(int(size.value))
    return size.expr if isinstance(size, Index) else None
