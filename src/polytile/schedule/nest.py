"""The layout of a loop nest: which axis is vectorised, and in which pass over a row each value is computed."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import sympy

from polytile.ir import expr, sizes
from polytile.ir.expr import Accumulator, Const, Node, Part, Reduce, Scan
from polytile.ir.loop import Axis, Loop, Store, element_level
from polytile.schedule.cuts import Cut, cut_of

SHORT = 8  # a constant axis shorter than this makes a poor vector
REPEATED = 0.01  # share of the points at which a value that does not vary with an axis of unknown length is read anew
UNIT = Axis(sizes.axis("p_one"), sizes.ONE)


class Form(enum.Enum):
    """POINTWISE: no reduced axes. ROW: vectors along a reduced axis, then across lanes. COLUMN: vectors along a
    parallel axis; the reduced axes run serially in each lane."""

    POINTWISE = "pointwise"
    ROW = "row"
    COLUMN = "column"


@dataclass(frozen=True)
class Dependence:
    """Dependences of one value: the axes it varies with outside any reduction, the number of passes that must precede
    it, whether it is under a scan, whether it is under a reduction, and whether it is constant between cuts of the
    vector axis."""

    axes: frozenset[sympy.Symbol]
    passes: int
    scanned: bool
    reduced: bool
    piecewise: bool = False


@dataclass(frozen=True)
class Nest:
    """The layout of one loop. `outer` axes are flattened and divided over threads. `inner` axes are the reduced axes
    outside the vector axis (ROW), or all of them (COLUMN).

    A loop with reductions runs in passes over its reduced axes: pass k can use the results of k nested reductions.
    Values outside any pass ("row values") are computed before the first pass that follows their operands. If `cutting`,
    the vector axis is swept in pieces on which comparisons such as p1 < n0 are constant (see `cuts`).
    """

    loop: Loop
    form: Form
    vec: Axis
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    cutting: bool = False

    # values ------------------------------------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node once, children before parents."""
        return tuple(expr.walk(*self.loop.roots))

    @cached_property
    def _dependences(self) -> dict[int, Dependence]:
        dependences: dict[int, Dependence] = {}
        for node in self.nodes:
            dependences[id(node)] = self._dependence(node, [dependences[id(c)] for c in self.operands(node)])
        return dependences

    def _dependence(self, node: Node, below: list[Dependence]) -> Dependence:
        own = set(self.loop.ranges) if isinstance(node, Accumulator) else _symbols(node.indices)
        axes = frozenset(own).union(*[d.axes for d in below])
        passes = max((d.passes for d in below), default=0)
        if isinstance(node, Reduce):
            return Dependence(axes - self._reduced, passes + 1, False, True)
        cut = self.cuts.get(id(node))
        scanned = isinstance(node, Scan) or any(d.scanned for d in below)
        reduced, piecewise = any(d.reduced for d in below), cut is not None or any(d.piecewise for d in below)
        return Dependence(axes | (cut.symbols if cut else set()), passes, scanned, reduced, piecewise)

    @cached_property
    def cuts(self) -> dict[int, Cut]:
        """Comparisons that change only at one point of the vector axis, by node."""
        if not self.cutting:
            return {}
        inside = {self.vec.symbol} | self._reduced
        cuts = ((n, cut_of(n, self.vec.symbol, inside)) for n in self.nodes)
        return {id(n): cut for n, cut in cuts if cut is not None}

    def operands(self, node: Node) -> tuple[Node, ...]:
        cut = self.cuts.get(id(node))
        return node.children if cut is None else cut.operands

    @cached_property
    def _reduced(self) -> frozenset[sympy.Symbol]:
        return frozenset(a.symbol for a in self.loop.reduced)

    def passes_before(self, node: Node) -> int:
        """Number of passes that must precede the computation of `node`."""
        return self.dependence(node).passes

    def dependence(self, node: Node) -> Dependence:
        """What `node` depends on: a node of the loop, or a load that a schedule has added to it."""
        known = self._dependences.get(id(node))
        return known or self._dependence(node, [self.dependence(below) for below in self.operands(node)])

    def in_pass(self, node: Node) -> bool:
        """Whether the node is computed inside a pass, rather than once per row or per tile of columns."""
        d = self.dependence(node)
        if self.form is Form.POINTWISE:
            return d.piecewise or self.vec.symbol in d.axes
        return d.piecewise or d.scanned or bool(d.axes & self._reduced)

    def is_vector(self, node: Node) -> bool:
        """Whether the node differs between lanes."""
        d = self.dependence(node)
        if self.form is Form.COLUMN:
            return d.scanned or d.reduced or self.vec.symbol in d.axes
        if self.form is Form.ROW and not self.in_pass(node):
            return False
        return d.scanned or self.vec.symbol in d.axes

    def is_piecewise(self, node: Node) -> bool:
        """Whether the node is equal in all lanes and changes only at cuts of the vector axis."""
        return self.dependence(node).piecewise and not self.is_vector(node)

    @cached_property
    def needed(self) -> tuple[Node, ...]:
        """The nodes that are computed. Nodes used only inside a cut comparison are not."""
        reached, stack = set(), list(self.loop.roots)
        while stack:
            node = stack.pop()
            if id(node) not in reached:
                reached.add(id(node))
                stack.extend(self.operands(node))
        return tuple(n for n in self.nodes if id(n) in reached)

    @cached_property
    def row_values(self) -> tuple[Node, ...]:
        """The values computed outside the passes from loads and results of reductions, in order."""
        return tuple(n for n in self.needed if not isinstance(n, Const) and not self.in_pass(n) and not is_result(n))

    def parts(self, reduce: Reduce) -> list[Part]:
        """The uses of the results of a reduction with several."""
        return [n for n in self.nodes if isinstance(n, Part) and n.node is reduce]

    # passes ------------------------------------------------------------------------------------------------------------

    @cached_property
    def passes(self) -> int:
        """Number of passes over the reduced axes."""
        last = [self.passes_before(r) - 1 for r in self.reduces] + [self._pass_of(s) for s in self._element_stores]
        return 1 + max(last, default=-1)

    @cached_property
    def reduces(self) -> tuple[Reduce, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Reduce))

    @cached_property
    def scans(self) -> tuple[Scan, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Scan))

    @cached_property
    def _element_stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.loop.stores if element_level(self.loop, s))

    def _pass_of(self, store: Store) -> int:
        return max(self.passes_before(r) for r in store.roots)

    def reduces_in(self, k: int) -> list[Reduce]:
        """The reductions that pass k accumulates."""
        return [r for r in self.reduces if self.passes_before(r) == k + 1]

    def stores_in(self, k: int) -> list[Store]:
        """The stores that pass k makes at every point."""
        return [s for s in self._element_stores if self._pass_of(s) == k]

    def row_stores(self, k: int) -> list[Store]:
        """The stores made once per row, after k passes."""
        return [s for s in self.loop.stores if s not in self._element_stores and self._pass_of(s) == k]

    def roots_in(self, k: int) -> list[Node]:
        """The values that pass k exists for."""
        return [a for r in self.reduces_in(k) for a in r.args] + [root for s in self.stores_in(k) for root in s.roots]

    def nodes_in(self, k: int, stop: Iterable[Node] = ()) -> Iterator[Node]:
        """The nodes that pass k computes for its roots. Nodes below a `stop` node count only if needed elsewhere."""
        stops = {id(n) for n in stop}
        stack, seen = self.roots_in(k)[::-1], set()
        while stack:
            node = stack.pop()
            if id(node) in seen or not self.in_pass(node):
                continue
            seen.add(id(node))
            yield node
            if id(node) not in stops:
                stack.extend(reversed(self.operands(node)))

    def scans_in(self, k: int) -> list[Scan]:
        """The scans whose prefix runs in pass k."""
        needed = {id(n) for n in self.nodes_in(k)}
        return [s for s in self.scans if id(s) in needed]


def _symbols(indices: Iterable[sympy.Expr]) -> set[sympy.Symbol]:
    symbols: set[sympy.Symbol] = set()
    return symbols.union(*map(sizes.symbols, indices))


def is_result(node: Node) -> bool:
    """Whether the node is a reduction's result."""
    return isinstance(node, Reduce) or (isinstance(node, Part) and isinstance(node.node, Reduce))


# the vector axis -------------------------------------------------------------------------------------------------------


def nest_of(loop: Loop) -> Nest:
    """The layout of `loop`: vectors run along the axis with the best memory access; ties go to a reduced axis, then to
    the innermost."""
    axes = loop.axes + loop.reduced or (UNIT,)
    vec = max(reversed(axes), key=lambda a: (_score(loop, a), a in loop.reduced))
    outer = tuple(a for a in loop.axes if a is not vec)
    if not loop.reduced:
        return Nest(loop, Form.POINTWISE, vec, outer, (), cutting=True)
    if vec in loop.reduced:
        return Nest(loop, Form.ROW, vec, outer, tuple(a for a in loop.reduced if a is not vec), cutting=True)
    return Nest(loop, Form.COLUMN, vec, outer, loop.reduced)


def _score(loop: Loop, axis: Axis) -> float:
    """How well `axis` serves as the vector axis.

    Accesses of stride 1 count in favour, others against; a store counts twice, since it moves its line twice. An access
    is weighted by how often it finds a new element: one that is constant along an axis, or made once per row of a
    reduction, hardly counts beside those at every point.
    """
    accesses = [(n.index, 1.0, frozenset(expr.free_symbols(n))) for n in expr.loads(*loop.roots)]
    everywhere = frozenset(loop.ranges)
    accesses += [(s.index, 2.0, everywhere if element_level(loop, s) else sizes.symbols(s.index)) for s in loop.stores]
    total = 0.0
    for index, weight, symbols in accesses:
        stride = sizes.coefficient(index, axis.symbol)
        value = -2.0 if stride is None else 1.0 if stride == 1 else 0.0 if stride == 0 else -0.5
        total += value * weight * _share(loop, symbols)
    if axis.size.is_Integer and axis.size < SHORT:
        total -= 100 - float(axis.size)
    return total


def _share(loop: Loop, symbols: Collection[sympy.Basic]) -> float:
    """Share of a loop's points at which a value that varies with these symbols finds a new element."""
    repeated = (a.size for a in loop.axes + loop.reduced if a.symbol not in symbols)
    return math.prod(1.0 / max(1, int(size)) if size.is_Integer else REPEATED for size in repeated)
