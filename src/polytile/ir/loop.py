"""Loops: values that are computed and stored at every point of some axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import sympy

from polytile.ir import expr
from polytile.ir import sizes as algebra
from polytile.ir.expr import Load, Node
from polytile.ir.library_call import LibraryCall


@dataclass(frozen=True)
class Axis:
    """A dimension of a loop: its symbol runs from 0 to size - 1."""

    symbol: sympy.Symbol
    size: sympy.Expr


SEGMENT_SUM = "sum"
"""Mode of a store that writes to each element of its buffer the sum of the values at all points that share the element, or 0 if
there are none."""


@dataclass(frozen=True)
class Store:
    """Writes `value`, converted to the buffer's dtype, to element `index` of `buffer`.

    Attributes
    ----------
    mode
        "set"; "add", which adds the value to the element, so that several points may share an element; or SEGMENT_SUM, where
        `index` omits some axes or is indirect.
    indirect
        As in Load.
    mask
        Nothing is written where it is false.
    """

    buffer: str
    index: sympy.Expr
    value: Node
    mode: str = "set"
    indirect: tuple[Node, ...] = ()
    mask: Node | None = None

    @property
    def roots(self) -> tuple[Node, ...]:
        return (self.value, *self.indirect) + ((self.mask,) if self.mask is not None else ())

    def with_roots(self, roots: tuple[Node, ...], index: sympy.Expr | None = None) -> Store:
        k = len(self.indirect)
        mask = roots[1 + k] if self.mask is not None else None
        return replace(self, value=roots[0], indirect=roots[1 : 1 + k], mask=mask, index=self.index if index is None else index)

    @property
    def is_plain(self) -> bool:
        """Whether the store sets one element at each point, at an index that is known."""
        return self.mode == "set" and not self.indirect and self.mask is None

    @property
    def is_segment_sum(self) -> bool:
        """Whether the store sums over all points that share an element (see SEGMENT_SUM)."""
        return self.mode == SEGMENT_SUM

    def symbols(self) -> set[sympy.Symbol]:
        """Axis symbols on which the address or the value depends, including through reductions."""
        own = self.index.free_symbols - {expr.indirect_symbol(k) for k in range(len(self.indirect))}
        return own | expr.free_symbols(*self.roots)


@dataclass(frozen=True)
class Loop:
    """Evaluates and stores values at every point of `axes`, and of `axes × reduced` where a value needs it.

    A store whose index or value depends on a reduced axis outside any Reduce runs at every point of `axes × reduced` (element
    level). Any other store runs once per point of `axes` (row level).

    Attributes
    ----------
    origins
        Names of the source operators.
    library
        The ATen calls that the loop came from, in order; empty if it has no such form (see passes/library.py). Passes that change
        what a loop computes keep them unchanged; `ir.calls.calls_of` says whether they still apply.
    """

    name: str
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()
    library: tuple[LibraryCall, ...] = field(default=(), compare=False, repr=False)

    @property
    def ranges(self) -> dict[sympy.Symbol, sympy.Expr]:
        return {a.symbol: a.size for a in self.axes + self.reduced}

    @property
    def roots(self) -> tuple[Node, ...]:
        return tuple(r for s in self.stores for r in s.roots)

    def reads(self) -> set[str]:
        return set(self._reads)

    @cached_property
    def _reads(self) -> frozenset[str]:
        return frozenset(load.buffer for load in expr.loads(*self.roots))

    def writes(self) -> set[str]:
        return {s.buffer for s in self.stores}

    def accesses(self) -> list[Load | Store]:
        """Every load, then every store. Each has a buffer, an index, indirect parts and a mask."""
        return [*expr.loads(*self.roots), *self.stores]

    def map_roots(
        self, rule: Callable[[tuple[Node, ...]], tuple[Node, ...]], index_map: Callable[[sympy.Expr], sympy.Expr] | None = None
    ) -> Loop:
        """Apply `rule` to all values of the loop at once, and `index_map` to the store indices."""
        new = rule(self.roots)
        stores, at = [], 0
        for store in self.stores:
            n = len(store.roots)
            stores.append(store.with_roots(new[at : at + n], index_map(store.index) if index_map else None))
            at += n
        return replace(self, stores=tuple(stores))

    def map_loads(self, rule: Callable[[Load], Node]) -> Loop:
        """Replace every load in the values of the loop."""
        return self.map_roots(lambda roots: expr.map_loads(roots, rule))

    def exchange(self, nodes: Mapping[int, Node]) -> Loop:
        """Replace the nodes with these identities in the values of the loop."""
        return self.map_roots(lambda roots: expr.exchange(roots, nodes))

    def substitute(self, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> Loop:
        """Replace index symbols in values and store indices. The axes themselves are unchanged."""
        return self.map_roots(lambda roots: expr.substitute(roots, mapping), lambda i: algebra.substitute(i, mapping))


def element_level(loop: Loop, store: Store) -> bool:
    """Whether `store` runs at every point of `axes × reduced`."""
    if not loop.reduced:
        return True
    reduced = {a.symbol for a in loop.reduced}
    own = store.index.free_symbols - {expr.indirect_symbol(k) for k in range(len(store.indirect))}
    return bool(own & reduced) or any(depends_on_point(r, reduced) for r in store.roots)


def depends_on_point(root: Node, reduced: set[sympy.Symbol]) -> bool:
    """Whether a value varies along the reduced axes outside any Reduce. A Scan and an epilogue's Accumulator always do."""
    stack, seen = [root], set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, expr.Reduce):
            continue
        seen.add(id(node))
        if isinstance(node, expr.Scan | expr.Accumulator) or any(e.free_symbols & reduced for e in node.indices):
            return True
        stack.extend(node.children)
    return False


def neighbours(stores: Iterable[Store], along: sympy.Symbol) -> list[tuple[Store, ...]]:
    """The stores in order, two together where they set elements 2k + c and 2k + c + 1 at point k of axis `along`. Each of the two
    would reach every other element, and half of what it moves would be wasted."""
    groups: list[tuple[Store, ...]] = []
    for store in stores:
        [low, *rest] = groups[-1] if groups else (None,)
        if low is not None and not rest and _adjacent(low, store, along):
            groups[-1] = (low, store)
        else:
            groups.append((store,))
    return groups


def _adjacent(low: Store, high: Store, along: sympy.Symbol) -> bool:
    same = low.buffer == high.buffer and algebra.coefficient(low.index, along) == 2
    return low.is_plain and high.is_plain and same and algebra.expanded(high.index - low.index) == 1
