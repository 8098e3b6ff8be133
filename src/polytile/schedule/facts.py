"""Facts about a call's arguments that generated code may rely on. Facts hold throughout a regime: each call's regime
key tests them, and they are never assumed when a graph is compiled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
from torch.utils._sympy.functions import Mod, ModularIndexing, PythonMod

from polytile.facts import Divisible
from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Load, Node, Op
from polytile.schedule.canonical import LoopKernel

INT32_REACH = (1 << 31) - (1 << 20)
"""Flat positions up to this are computed in int32. The rest of the range is for blocks that overhang the end."""


@dataclass(frozen=True)
class Facts:
    """What holds for the arguments, by name, of every call in a regime.

        divisible  integers that 16 divides
        aligned    tensors whose data is aligned to 16 bytes
        wide       some position in a tensor or in the grid needs int64
        exact      integers with one value throughout the regime, in order
        holding    known multiples of larger numbers
        powers     powers of two below 16 that divide other integers, or the addresses of other tensors' data
        least      the smallest row lengths in the regime
    """

    divisible: frozenset[str] = frozenset()
    aligned: frozenset[str] = frozenset()
    wide: bool = False
    exact: tuple[tuple[str, int], ...] = ()
    holding: frozenset[Divisible] = frozenset()
    powers: tuple[tuple[str, int], ...] = ()
    least: tuple[tuple[str, int], ...] = ()

    @property
    def values(self) -> dict[str, int]:
        """The exact integers by name."""
        return dict(self.exact)

    def divides(self, name: str) -> bool:
        """Whether 16 divides the integer `name`."""
        return self.divisor(name) == 16

    def divisor(self, name: str) -> int:
        """The power of two up to 16 known to divide the integer `name`, or the address of that tensor's data."""
        value = self.values.get(name)
        if value is not None:
            return math.gcd(value, 16)
        return 16 if name in self.divisible | self.aligned else dict(self.powers).get(name, 1)


def reaches(kernel: LoopKernel) -> tuple[sympy.Expr, ...]:
    """Expressions of the kernel's symbols that bound its positions: at all sizes, each position is at most one of them.
    If one exceeds INT32_REACH, positions need int64."""
    far = {a.symbol: a.size for a in kernel.loop.axes + kernel.loop.reduced}
    reached = {sizes.product(list(far.values())): None}
    for index, indirect in _accesses(kernel):
        limits = {expr.indirect_symbol(k): index_limit(node) or sizes.ZERO for k, node in enumerate(indirect)}
        reached[_far_end(index, {**far, **limits})] = None
    return tuple(reached)


def _far_end(index: sympy.Expr, far: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """The sum of |term| with every axis at its size and every remainder at its divisor."""
    remainders = {e: e.args[-1] for e in index.atoms(Mod, PythonMod, sympy.Mod, ModularIndexing)}
    total = sizes.ZERO
    for term in sympy.Add.make_args(sympy.expand(index)):
        factor, rest = term.xreplace(remainders).as_coeff_Mul()
        total += abs(factor) * rest.xreplace(far)
    return total


def index_limit(node: Node) -> sympy.Expr | None:
    """The size that an indirect index is checked against, its exclusive upper bound. None if no check is visible."""
    for below in expr.walk(node):
        if isinstance(below, Op) and below.name == "check_index":
            limit = below.args[1]
            if isinstance(limit, Const):
                return sympy.Integer(int(limit.value))
            if isinstance(limit, Index):
                return limit.expr
    return None


def _accesses(kernel: LoopKernel) -> Iterator[tuple[sympy.Expr, tuple[Node, ...]]]:
    """Every index expression, with the values that its indirect symbols stand for."""
    for node in expr.walk(*kernel.loop.roots):
        for index in node.indices:
            yield index, node.indirect if isinstance(node, Load) else ()
    for store in kernel.loop.stores:
        yield store.index, store.indirect
