"""Makes the start of a loop's accesses to a tensor an integer argument, so that loops that differ only in it share one
kernel.

    a1[p0] = a0[p0 + 48*n0]                      a1[p0] = a0[p0 + n1]                   called with n1 = 48*n0
    a1[p0] = a0[p0 + 64] + a0[p0 + 80]           a1[p0] = a0[p0 + n0] + a0[p0 + n0 + 16]         with n0 = 64
    philox_uniform(seed, p0 + 3·2⁴⁰)             philox_uniform(seed, p0 + 2⁴⁰·n0)               with n0 = 3

The unrolled steps of a recurrence read successive rows of their input. The relative offsets of the accesses to one
tensor stay in the kernel, since they show what the accesses have in common. A tensor is left as it is if some access
starts at 0 or below, as in padded windows; so are the random numbers of a program's first operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

import sympy

from polytile.ir import expr
from polytile.ir.calls import moved
from polytile.ir.library_call import LibraryCall
from polytile.ir.loop import Loop
from polytile.ir.philox import COUNTERS_PER_OPERATOR
from polytile.ir.sizes import expanded


@dataclass(frozen=True)
class Start:
    """`symbol` stands for `begin`, the start of the first access, in units of `unit` elements."""

    symbol: sympy.Symbol
    begin: sympy.Expr
    unit: int = 1

    def moved(self, index: sympy.Expr) -> sympy.Expr:
        """`index` with the symbol in place of the start."""
        return expanded(index - self.unit * self.begin) + self.unit * self.symbol


Starts = Mapping[str, Start]
"""The starts of a loop's tensors that have one, and the start of its random numbers under COUNTERS."""

COUNTERS = "counters"


def starts_of(loop: Loop) -> Starts:
    """The starts of those tensors of `loop` whose accesses all start beyond the first element, in order of access."""
    begins: dict[tuple[str, int], list[sympy.Expr]] = {}
    axes = frozenset(loop.ranges)
    for access in loop.accesses():
        begins.setdefault((access.buffer, 1), []).append(_begin(access.index, axes))
    for node in expr.walk(*loop.roots):
        if _counted(node):
            operator = _begin(node.args[1].indices[0], axes) // COUNTERS_PER_OPERATOR
            begins.setdefault((COUNTERS, COUNTERS_PER_OPERATOR), []).append(operator)
    able = {place: firsts[0] for place, firsts in begins.items() if all(begin.is_positive for begin in firsts)}
    return {
        name: Start(sympy.Symbol(f"start{k}", integer=True, positive=True), begin, unit)
        for k, ((name, unit), begin) in enumerate(able.items())
    }


def _counted(node: expr.Node) -> TypeGuard[expr.Op]:
    """Whether `node` is a random number whose counter depends on its position."""
    return isinstance(node, expr.Op) and node.name.startswith("philox") and isinstance(node.args[1], expr.Index)


def _begin(index: sympy.Expr, axes: frozenset[sympy.Symbol]) -> sympy.Expr:
    """The terms of `index` that involve no axis and no indirect index; -1 if it runs backwards along some axis."""
    begin = []
    for term in sympy.Add.make_args(expanded(index)):
        if not any(s in axes or s.name.startswith("ind") for s in term.free_symbols):
            begin.append(term)
        elif term.as_coeff_Mul()[0] < 0:
            return sympy.Integer(-1)
    return sympy.Add(*begin)


def with_starts(loop: Loop, starts: Starts) -> Loop:
    """`loop` with the symbols of `starts` in its accesses."""

    def rule(node: expr.Node, children: tuple[expr.Node, ...]) -> expr.Node:
        node = expr.rebuild(node, children)
        if isinstance(node, expr.Load) and node.buffer in starts:
            return expr.load(node.dtype, node.buffer, starts[node.buffer].moved(node.index), node.indirect, node.mask)
        if COUNTERS in starts and _counted(node):
            seed, offset = node.args
            return expr.op(node.name, node.dtype, seed, expr.index_value(starts[COUNTERS].moved(offset.indices[0])))
        return node

    if not starts:
        return loop
    renamed = loop.map_roots(lambda roots: expr.rewrite(roots, rule))
    stores = (replace(s, index=starts[s.buffer].moved(s.index)) if s.buffer in starts else s for s in renamed.stores)
    return replace(renamed, stores=tuple(stores))


def call_with_starts(call: LibraryCall, starts: Starts) -> LibraryCall:
    """`call` with the symbols of `starts` in the offsets of its views."""
    return moved(call, lambda v: starts[v.buffer].moved(v.offset) if v.buffer in starts else v.offset)
