"""Where a loop's accesses to a tensor begin, as an integer of the call: loops that differ in this alone are one kernel.

    a1[p0] = a0[p0 + 48*n0]                      a1[p0] = a0[p0 + n1]                   called with n1 = 48*n0
    a1[p0] = a0[p0 + 64] + a0[p0 + 80]           a1[p0] = a0[p0 + n0] + a0[p0 + n0 + 16]         with n0 = 64

The steps of a recurrence that is written out read one row of their input after the other. How the accesses to one tensor lie to
each other stays in the kernel: it says what they have in common. A tensor of which some access begins at 0 or below, as those of
padded windows do, is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from polytile.ir import expr
from polytile.ir.calls import moved
from polytile.ir.program import LibraryCall, Loop
from polytile.ir.sizes import expanded

Starts = Mapping[str, tuple[sympy.Symbol, sympy.Expr]]
"""For each tensor with a start of its own the symbol that stands for it, and where its first access begins."""


def starts_of(loop: Loop) -> Starts:
    """The tensors of `loop` all of whose accesses begin beyond its first element, in order of access."""
    begins: dict[str, list[sympy.Expr]] = {}
    axes = frozenset(loop.ranges)
    for access in loop.accesses():
        begins.setdefault(access.buffer, []).append(_begin(access.index, axes))
    able = {buffer: found[0] for buffer, found in begins.items() if all(begin.is_positive for begin in found)}
    return {
        buffer: (sympy.Symbol(f"start{k}", integer=True, positive=True), begin)
        for k, (buffer, begin) in enumerate(able.items())
    }


def _begin(index: sympy.Expr, axes: frozenset[sympy.Symbol]) -> sympy.Expr:
    """The terms of `index` that no axis and no indirect index has a part in; -1 where it runs backwards along some axis."""
    begin = []
    for term in sympy.Add.make_args(expanded(index)):
        if not any(s in axes or s.name.startswith("ind") for s in term.free_symbols):
            begin.append(term)
        elif term.as_coeff_Mul()[0] < 0:
            return sympy.Integer(-1)
    return sympy.Add(*begin)


def with_starts(loop: Loop, starts: Starts) -> Loop:
    """`loop` with the symbols of `starts` in its accesses."""

    def index(buffer: str, e: sympy.Expr) -> sympy.Expr:
        return _moved(e, *starts[buffer]) if buffer in starts else e

    def rule(node: expr.Node, children: tuple[expr.Node, ...]) -> expr.Node:
        node = expr.rebuild(node, children)
        if isinstance(node, expr.Load) and node.buffer in starts:
            return expr.load(node.dtype, node.buffer, index(node.buffer, node.index), node.indirect, node.mask)
        return node

    if not starts:
        return loop
    renamed = loop.map_roots(lambda roots: expr.rewrite(roots, rule))
    return replace(renamed, stores=tuple(replace(s, index=index(s.buffer, s.index)) for s in renamed.stores))


def call_with_starts(call: LibraryCall, starts: Starts) -> LibraryCall:
    """`call` with the symbols of `starts` in the offsets of its views."""
    return moved(call, lambda view: _moved(view.offset, *starts[view.buffer]) if view.buffer in starts else view.offset)


def _moved(e: sympy.Expr, symbol: sympy.Symbol, begin: sympy.Expr) -> sympy.Expr:
    return expanded(e - begin) + symbol


__all__ = ["Starts", "call_with_starts", "starts_of", "with_starts"]
