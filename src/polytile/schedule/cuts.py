"""Comparisons that hold on one side of a point of the vector axis: p1 < n0, r0 <= p0, len[p0] > r0.

Concatenation, padding and triangular masks are made of them. The sweep of the vector axis stops at such points, and between
them the comparison has one value: no vector of indices is compared, and what is masked is loaded whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Node, Op

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class Cut:
    """The comparison `name` of the vector axis (with a fixed offset) with a value: it changes where the axis is at
    `offset` + the value of `operand` (0 where there is none), and is true below that point or from it on."""

    offset: sympy.Expr
    operand: Node | None
    below: bool

    @property
    def operands(self) -> tuple[Node, ...]:
        return () if self.operand is None else (self.operand,)

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        return frozenset(self.offset.free_symbols)


def cut_of(node: Node, vec: sympy.Symbol, inside: set[sympy.Symbol]) -> Cut | None:
    """The cut that `node` stands for; None where it is no such comparison. What the axis `vec` is compared with must not
    vary with the symbols `inside`, those of the passes."""
    if not (isinstance(node, Op) and node.name in MIRRORED and node.args[0].dtype == torch.int64):
        return None
    left, right = node.args
    if isinstance(left, Index) and isinstance(right, Index | Const):
        return _cut(node.name, left.expr - _expr(right), None, vec, inside)
    if isinstance(left, Const) and isinstance(right, Index):
        return _cut(node.name, _expr(left) - right.expr, None, vec, inside)
    if isinstance(left, Index) and not expr.free_symbols(right) & inside:
        return _cut(node.name, left.expr, right, vec, inside)
    if isinstance(right, Index) and not expr.free_symbols(left) & inside:
        return _cut(MIRRORED[node.name], right.expr, left, vec, inside)
    return None


def _expr(node: Index | Const) -> sympy.Expr:
    return node.expr if isinstance(node, Index) else sympy.Integer(int(node.value))


def _cut(name: str, difference: sympy.Expr, operand: Node | None, vec: sympy.Symbol, inside: set[sympy.Symbol]) -> Cut | None:
    """The cut of `difference` against `operand` (or 0):

     v + rest < y  →  v below y - rest        v + rest <= y  →  v below y - rest + 1        > and >= : from there on
    -v + rest < 0  →  v > rest: the mirror image
    """
    step = sizes.coefficient(difference, vec)
    if step == -1 and operand is None:
        return _cut(MIRRORED[name], -difference, None, vec, inside)
    rest = sympy.expand(difference - vec)
    if step != 1 or rest.free_symbols & inside:
        return None
    return Cut(-rest + (1 if name in ("le", "gt") else 0), operand, name in ("lt", "le"))
