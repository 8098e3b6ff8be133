"""One sweep of the vector axis: split into pieces at cuts, and started so that stores are aligned."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import sympy

from polytile.codegen.cpp import text
from polytile.codegen.cpp.body import Body, Scope
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.ir.expr import Node
from polytile.ir.loop import Store

Sweep = Callable[[Scope, str, str], None]


def in_pieces(body: Body, out: Writer, scope: Scope, nodes: Iterable[Node], first: str, last: str, sweep: Sweep) -> None:
    """Calls `sweep(scope, first, last)` for every piece of [first, last) on which the cut comparisons among `nodes` are
    constant. The scope knows their values there."""
    nest, wanted = body.nest, set(nodes)
    uniform = [n for n in nest.needed if n in wanted and nest.is_piecewise(n)]
    if not uniform:
        sweep(scope, first, last)
        return
    inner = scope.inner(leave="continue;")
    places = {n: _place(body, n, inner) for n in uniform if id(n) in nest.cuts}
    out.extend(inner.lines)
    inner.lines.clear()
    with out.block(f"for (long from = {first}, upto; from < {last}; from = upto) {{"):
        out.line(f"upto = next_cut(from, {last}, {', '.join(dict.fromkeys(places.values()))});")
        for node in uniform:
            if node in places:
                sign = "<" if nest.cuts[id(node)].below else ">="
                inner.lines.append(f"const V<i32, 1> {body.name(node)} = -i32(from {sign} {places[node]});")
                inner.names[id(node)] = body.name(node)
            else:
                body.emit(node, inner)
        out.extend(inner.lines)
        inner.lines.clear()
        sweep(inner, "from", "upto")


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
        return f"lead<L>({s.buffer} + {text.index(sympy.expand(s.index.xreplace({vec: start})))}, {last} - {first})"
    return "0"
