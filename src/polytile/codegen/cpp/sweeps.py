"""One sweep of the vector axis: split into pieces at cuts, and started so that stores are aligned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import sympy

from polytile.codegen.cpp import text
from polytile.codegen.cpp.body import Body, Scope
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.ir.expr import Node
from polytile.ir.loop import Store
from polytile.schedule.nest import Nest

Sweep = Callable[[Scope, str, str, str], None]
"""Emits a sweep, in a scope, from a first element up to another, with these template arguments of `each_vector`."""

MOST_PIECES, SHORT = 4, 40
"""Pieces that may have a text each, and nodes of a loop whose text is short enough for that. Comparisons are constants there: a
row of 63 elements in three pieces takes 9 ns so, and 15 in one text that serves all pieces (docs/cpu-experiments.md)."""


def in_pieces(
    body: Body, out: Writer, scope: Scope, nodes: Iterable[Node], first: str, last: str, sweep: Sweep, apart: bool = False
) -> None:
    """Calls `sweep(scope, first, last, lanes)` for every piece of [first, last) on which the cut comparisons among `nodes` are
    constant. The scope knows their values there. `apart`: pieces whose order is known have a text each, where these are few and
    short; one of a single element has no vectors, whose masked loads and stores took 84 µs where 54 do (8192 mirrored rows of 12
    elements, padded by 1; AVX-512, one thread)."""
    nest, wanted = body.nest, set(nodes)
    uniform = [n for n in nest.needed if n in wanted and nest.is_piecewise(n)]
    if not uniform:
        sweep(scope, first, last, "L")
        return
    inner = scope.inner(leave="continue;")
    places = {n: _place(body, n, inner) for n in uniform if id(n) in nest.cuts}
    out.extend(inner.lines)
    inner.lines.clear()

    def piece(value: Callable[[Node], str], lanes: str) -> None:
        known = inner.inner(leave=inner.leave)
        for node in uniform:
            if node in places:
                known.lines.append(f"const V<i32, 1> {body.name(node)} = {value(node)};")
                known.names[id(node)] = body.name(node)
            else:
                body.emit(node, known)
        out.extend(known.lines)
        known.lines.clear()
        sweep(known, "from", "upto", lanes)

    ordered = _in_order(nest, places) if apart and len(wanted) <= SHORT else None
    if ordered is None:
        with out.block(f"for (long from = {first}, upto; from < {last}; from = upto) {{"):
            out.line(f"upto = next_cut(from, {last}, {', '.join(dict.fromkeys(places.values()))});")
            piece(lambda node: f"-i32(from {'<' if nest.cuts[id(node)].below else '>='} {places[node]})", "L")
        return
    with out.block("{"):
        out.line(f"long from = {first};")
        for k in range(len(ordered) + 1):
            upto = f"smaller({ordered[k]}, {last})" if k < len(ordered) else last
            with out.block(f"for (const long upto = {upto}; from < upto; from = upto) {{"):
                most = _most(nest, places, ordered, k)
                if most == 1:
                    out.line("constexpr int L = 1;")
                true = {n for n in places if nest.cuts[id(n)].below == (k <= ordered.index(places[n]))}
                values = {n: "i32(-1)" if n in true else "i32(0)" for n in places}
                piece(values.__getitem__, "L" if most is None else f"L, {most}")


def _most(nest: Nest, places: Mapping[Node, str], ordered: Sequence[str], k: int) -> int | None:
    """The most elements that piece k can have, if that is a number."""
    cuts = {place: nest.cuts[id(node)].place() for node, place in places.items()}
    begins = [sizes.ZERO, *(cuts[place] for place in ordered), nest.vec.size]
    most = sympy.expand(begins[k + 1] - begins[k])
    return int(most) if most.is_Integer and most >= 0 else None


def _in_order(nest: Nest, places: Mapping[Node, str]) -> list[str] | None:
    """The places of the cuts, if they are few and known to follow each other in this order at all sizes."""
    cuts = {place: nest.cuts[id(node)] for node, place in places.items()}
    if len(cuts) >= MOST_PIECES or any(cut.operand is not None for cut in cuts.values()):
        return None

    def follow(order: Iterable[str]) -> bool:
        return all(sizes.is_nonnegative(sympy.expand(cuts[b].place() - cuts[a].place())) for a, b in itertools.pairwise(order))

    return next((list(order) for order in itertools.permutations(cuts) if follow(order)), None)


def _place(body: Body, node: Node, scope: Scope) -> str:
    """The point of the vector axis at which the comparison changes."""
    cut = body.nest.cuts[id(node)]
    if cut.operand is None:
        return text.factor(cut.place())
    value = body.scalar(cut.operand, scope)
    if cut.step == 1:
        return value if cut.offset == 0 else f"({value} + {text.factor(cut.offset)})"
    return text.factor(cut.place(sympy.Symbol(body.bound(value, scope), integer=True)))


def lead(body: Body, stores: Iterable[Store], first: str, last: str) -> str:
    """Number of leading elements after which the first contiguous store of `stores` is aligned, since a vector store
    across two cache lines runs at half the speed. Such a sweep sums nothing, so no result depends on a tensor's
    address."""
    vec = body.nest.vec.symbol
    for s in stores:
        if s.indirect or s.mask is not None or sizes.coefficient(s.index, vec) != 1:
            continue
        start = sympy.Symbol(first, integer=True) if first.isidentifier() else sympy.Integer(first)
        return f"lead<L>({s.buffer} + {body.element(s.index, start)}, {last} - {first})"
    return "0"
