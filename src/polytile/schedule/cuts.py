"""Comparisons that change only at one point of the vector axis: p1 < n0, 2*p1 - 1 >= 0, r0 <= p0, len[p0] > r0.

Concatenation, padding, windows and triangular masks consist of them. The sweep of the vector axis stops at such points,
and between them the comparison is constant. So no index vectors are compared, and masked accesses are made in full or
not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Node, Op
from polytile.ir.sizes import ZERO

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class Cut:
    """A comparison of the vector axis with a value. It changes at (`offset` + value of `operand`) // `step` (`operand`
    None counts as 0), and is true below that point or from it on."""

    offset: sympy.Expr
    operand: Node | None
    below: bool
    step: int = 1

    def place(self, operand: sympy.Expr = ZERO) -> sympy.Expr:
        """The point, for this value of the operand."""
        reached = sympy.expand(self.offset + operand)
        return reached if self.step == 1 else FloorDiv(reached, sympy.Integer(self.step))

    @property
    def operands(self) -> tuple[Node, ...]:
        return () if self.operand is None else (self.operand,)

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        return frozenset(self.offset.free_symbols)


def cut_of(node: Node, vec: sympy.Symbol, inside: set[sympy.Symbol]) -> Cut | None:
    """The cut represented by `node`; None if it is not such a comparison. The value that the axis `vec` is compared with must
    not depend on the symbols `inside`, those of the passes."""
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
    """The cut of `difference` against `operand` (or 0), for a positive constant c:

     c·v + rest < y  →  v below ⌈(y - rest) / c⌉   c·v + rest <= y  →  v below ⌊(y - rest) / c⌋ + 1   > and >= : from there on
        -c·v + rest < 0  →  c·v > rest: the mirror image
    """
    step = sizes.coefficient(difference, vec)
    if step is None or not step.is_Integer or step == 0:
        return None
    if step < 0:
        return _cut(MIRRORED[name], sympy.expand(-difference), None, vec, inside) if operand is None else None
    rest = sympy.expand(difference - step * vec)
    if rest.free_symbols & inside:
        return None
    beyond = step if name in ("le", "gt") else step - 1
    return Cut(beyond - rest, operand, name in ("lt", "le"), int(step))
