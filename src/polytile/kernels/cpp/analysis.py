"""How a loop nest is laid out for C++: which axis is the vector, what is computed where, and in how many passes."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from polytile.ir import expr, ops, sizes
from polytile.ir.expr import Accumulator, Load, Node, Op, Part, Reduce, Scan
from polytile.ir.program import Axis, Loop, Store, element_level

SMALL = 8  # a constant axis shorter than this makes a poor vector


class Form(enum.Enum):
    """POINTWISE: no reduced axes. ROW: vectors along a reduced axis, then across lanes. COLUMN: vectors along a parallel
    axis, the reduced axes run serially in each lane."""

    POINTWISE = "pointwise"
    ROW = "row"
    COLUMN = "column"


@dataclass(frozen=True)
class Nest:
    """The layout of one loop: `outer` axes are flattened and divided over threads; `inner` are the reduced axes that run
    outside the vector axis (ROW) or all of them (COLUMN)."""

    loop: Loop
    form: Form
    vec: Axis
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]

    @cached_property
    def reduced(self) -> frozenset[sympy.Symbol]:
        return frozenset(a.symbol for a in self.loop.reduced)

    @cached_property
    def facts(self) -> dict[int, Facts]:
        """Facts of every node, by id."""
        found: dict[int, Facts] = {}
        for node in expr.walk(*self.loop.roots):
            found[id(node)] = self._facts(node, [found[id(c)] for c in node.children])
        return found

    def _facts(self, node: Node, below: list[Facts]) -> Facts:
        own: set[sympy.Symbol] = set().union(*[e.free_symbols for e in node.indices]) if node.indices else set()
        if isinstance(node, Accumulator):
            own = {a.symbol for a in self.loop.axes}
        deps = frozenset(own).union(*[f.deps for f in below])
        level = max((f.level for f in below), default=0)
        scanned = isinstance(node, Scan) or any(f.scanned for f in below)
        reduces = isinstance(node, Reduce) or any(f.reduces for f in below)
        if isinstance(node, Reduce):
            return Facts(deps - self.reduced, level + 1, False, True)
        return Facts(deps, level, scanned, reduces)

    def of(self, node: Node) -> Facts:
        return self.facts[id(node)]

    def in_pass(self, node: Node) -> bool:
        """Whether the node is computed inside a pass over the inner domain (else once per row, or per tile of columns)."""
        facts = self.of(node)
        if self.form is Form.POINTWISE:
            return self.vec.symbol in facts.deps
        return facts.scanned or bool(facts.deps & self.reduced)

    def is_vector(self, node: Node) -> bool:
        """Whether the node differs between lanes."""
        facts = self.of(node)
        if self.form is Form.COLUMN:
            return facts.scanned or facts.reduces or self.vec.symbol in facts.deps
        if self.form is Form.ROW and not self.in_pass(node):
            return False
        return facts.scanned or self.vec.symbol in facts.deps

    @cached_property
    def passes(self) -> int:
        """Number of passes over the inner domain."""
        return 1 + max((self.pass_of(r) for r in self.pass_roots), default=-1)

    def pass_of(self, root: Reduce | Store) -> int:
        if isinstance(root, Reduce):
            return self.of(root).level - 1
        return max(self.of(r).level for r in root.roots)

    @cached_property
    def pass_roots(self) -> list[Reduce | Store]:
        """What the passes must do: accumulate reductions and make element-level stores."""
        reduces = [n for n in expr.walk(*self.loop.roots) if isinstance(n, Reduce)]
        return [*reduces, *[s for s in self.loop.stores if element_level(self.loop, s)]]

    def reduces_in(self, k: int) -> list[Reduce]:
        return [r for r in self.pass_roots if isinstance(r, Reduce) and self.pass_of(r) == k]

    def stores_in(self, k: int) -> list[Store]:
        return [s for s in self.pass_roots if isinstance(s, Store) and self.pass_of(s) == k]

    def row_stores(self, level: int) -> list[Store]:
        """Row-level stores whose values are known after `level` passes."""
        rows = [s for s in self.loop.stores if not element_level(self.loop, s)]
        return [s for s in rows if self.pass_of(s) == level]

    @cached_property
    def scans(self) -> list[Scan]:
        return [n for n in expr.walk(*self.loop.roots) if isinstance(n, Scan)]


@dataclass(frozen=True)
class Facts:
    """Of one node: axis symbols it varies with, number of passes that must be over before it is known, whether it is under a
    scan, whether it depends on a reduction."""

    deps: frozenset[sympy.Symbol]
    level: int
    scanned: bool
    reduces: bool


def accesses(loop: Loop) -> Iterator[tuple[sympy.Expr, float]]:
    """(index, weight) of every load and store; a store moves its line twice."""
    for load in expr.loads(*loop.roots):
        yield load.index, 1.0
    for store in loop.stores:
        yield store.index, 2.0


def _score(loop: Loop, axis: Axis) -> float:
    """How well `axis` serves as the vector: unit-stride accesses count for it, strided ones against."""
    total = 0.0
    for index, weight in accesses(loop):
        c = sizes.coefficient(index, axis.symbol)
        if c is None:
            total -= 2 * weight
        elif c == 1:
            total += weight
        elif c != 0:
            total -= 0.5 * weight
    if axis.size.is_Integer and axis.size < SMALL:
        total -= 100 - float(axis.size)
    return total


def scatter_axes(loop: Loop) -> list[Axis]:
    """Axes over which an accumulating or indirect store never meets the same element twice: linear in its index and absent
    from its indirect values."""
    scattered = [s for s in loop.stores if s.mode == "add" or s.indirect]

    def safe(axis: Axis) -> bool:
        return all(
            sizes.coefficient(s.index, axis.symbol) not in (None, 0)
            and not (s.indirect and axis.symbol in expr.free_symbols(*s.indirect))
            for s in scattered
        )

    return [a for a in loop.axes if safe(a)]


def is_scatter(loop: Loop) -> bool:
    return any(s.mode == "add" or s.indirect for s in loop.stores)


UNIT = Axis(sizes.axis("p_one"), sizes.ONE)


def nest_of(loop: Loop) -> Nest:
    """The layout of `loop`: the axis with the best score becomes the vector, innermost winning ties."""
    if not loop.reduced:
        axes = list(loop.axes) or [UNIT]
        preferred = scatter_axes(loop) if is_scatter(loop) else []
        vec = max(reversed(preferred or axes), key=lambda a: _score(loop, a))
        return Nest(loop, Form.POINTWISE, vec, tuple(a for a in axes if a is not vec), ())
    candidates = list(reversed(loop.axes + loop.reduced))
    ranked = sorted(candidates, key=lambda a: (-_score(loop, a), a not in loop.reduced))
    vec = ranked[0]
    if vec in loop.reduced:
        return Nest(loop, Form.ROW, vec, loop.axes, tuple(a for a in loop.reduced if a is not vec))
    return Nest(loop, Form.COLUMN, vec, tuple(a for a in loop.axes if a is not vec), loop.reduced)


def lane_bytes(nest: Nest) -> int:
    """Width of the widest element type that lives in vectors: it decides the lane count."""
    widest = 4
    for node in expr.walk(*nest.loop.roots):
        if isinstance(node, expr.Const) or not nest.is_vector(node):
            continue
        if node.dtype.itemsize == 8:
            widest = 8
        if isinstance(node, Load) and nest_gathers(nest, node):
            widest = 8
    return widest


def nest_gathers(nest: Nest, load: Load) -> bool:
    """Whether a vector load needs an index vector."""
    if any(nest.is_vector(i) for i in load.indirect):
        return True
    return sizes.coefficient(load.index, nest.vec.symbol) is None


def cached_nodes(nest: Nest, threshold: float = 8.0) -> list[tuple[Node, int]]:
    """Values worth keeping for a later pass over the same row instead of computing them again, with the pass that computes
    them: vector nodes needed in two or more passes whose own work costs at least `threshold`."""
    if nest.form is not Form.ROW or nest.scans:
        return []
    first: dict[int, int] = {}
    kept: dict[int, Node] = {}
    for k in range(nest.passes):
        roots = [a for r in nest.reduces_in(k) for a in r.args] + [x for s in nest.stores_in(k) for x in s.roots]
        stack, seen = list(roots), set()
        while stack:
            node = stack.pop()
            if id(node) in seen or not nest.in_pass(node):
                continue
            seen.add(id(node))
            if first.setdefault(id(node), k) < k and nest.is_vector(node) and work(node) >= threshold:
                kept[id(node)] = node
                continue
            stack.extend(node.children)
    return [(node, first[key]) for key, node in kept.items()]


def work(root: Node) -> float:
    """Cost of computing a value from memory, reductions aside, in multiply-adds a lane."""
    total, stack, seen = 0.0, [root], set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Reduce | Part):
            continue
        seen.add(id(node))
        total += 1.0 if isinstance(node, Load) else ops.definition(node.name).cost if isinstance(node, Op) else 0.0
        stack.extend(node.children)
    return total


def has_dtype(nest: Nest, dtype: torch.dtype) -> bool:
    return any(n.dtype == dtype for n in expr.walk(*nest.loop.roots))
