"""Formulas that read as such: expression nodes of one floating-point type with Python's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from polytile.frontend.lower.pointwise_table import Element, like, node, selected
from polytile.ir.expr import Node

Number = int | float


@dataclass(frozen=True, eq=False)
class Term:
    """A node; numbers beside it are constants of its type. `x > 0` is a condition, for `where`, `&`, `|` and `~`."""

    node: Node

    def apply(self, name: str, *others: Term | Number) -> Term:
        """The IR operation `name` on this term and `others`."""
        return Term(node(name, self.node, *(self.like(o).node for o in others)))

    def like(self, value: Term | Number) -> Term:
        """`value`, a number as a constant of this term's type."""
        return value if isinstance(value, Term) else Term(like(value, self.node))

    def __add__(self, other: Term | Number) -> Term:
        return self.apply("add", other)

    def __radd__(self, other: Number) -> Term:
        return self.like(other) + self

    def __sub__(self, other: Term | Number) -> Term:
        return self.apply("sub", other)

    def __rsub__(self, other: Number) -> Term:
        return self.like(other) - self

    def __mul__(self, other: Term | Number) -> Term:
        return self.apply("mul", other)

    def __rmul__(self, other: Number) -> Term:
        return self.like(other) * self

    def __truediv__(self, other: Term | Number) -> Term:
        return self.apply("div", other)

    def __rtruediv__(self, other: Number) -> Term:
        return self.like(other) / self

    def __neg__(self) -> Term:
        return self.apply("neg")

    def __abs__(self) -> Term:
        return self.apply("abs")

    def __lt__(self, other: Term | Number) -> Term:
        return self.apply("lt", other)

    def __le__(self, other: Term | Number) -> Term:
        return self.apply("le", other)

    def __gt__(self, other: Term | Number) -> Term:
        return self.apply("gt", other)

    def __ge__(self, other: Term | Number) -> Term:
        return self.apply("ge", other)

    def equals(self, other: Term | Number) -> Term:
        return self.apply("eq", other)

    def __and__(self, other: Term) -> Term:
        return self.apply("logical_and", other)

    def __or__(self, other: Term) -> Term:
        return self.apply("logical_or", other)

    def __invert__(self) -> Term:
        return self.apply("logical_not")

    @property
    def whole(self) -> Term:
        """Whether it is a whole number (infinities are)."""
        return self.equals(self.apply("floor"))

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of its type."""
        return torch.finfo(self.node.dtype).eps


def formula(of: Callable[..., Term]) -> Element:
    """The element of a pointwise operator from a function of terms."""
    return lambda *nodes: of(*(Term(n) for n in nodes)).node


def where(condition: Term, a: Term | Number, b: Term | Number) -> Term:
    """`a` where `condition` holds, else `b`; one of them at least is a term."""
    kind = a if isinstance(a, Term) else b
    assert isinstance(kind, Term)
    return Term(selected(condition.node, kind.like(a).node, kind.like(b).node))


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """The polynomial with `coefficients`, highest power first, by Horner's rule."""
    first, *rest = coefficients
    return reduce(lambda sum_, c: sum_.apply("fma", x, c), rest, x.like(first))


def chebyshev(x: Term, coefficients: Sequence[float]) -> Term:
    """Σ cₖ Tₖ(x/2) of `coefficients` c, highest degree first, where c₀ counts half, by Clenshaw's recurrence. Terms at the
    start that a value of this type would not show are left out."""
    least = x.eps / 32 * max(abs(c) for c in coefficients)
    kept = list(coefficients)
    while abs(kept[0]) < least:
        kept.pop(0)
    before, last = x.like(0), x.like(kept[0])
    for c in kept[1:-1]:
        before, last = last, x * last - before + c
    return 0.5 * x * last - before + 0.5 * kept[-1]
