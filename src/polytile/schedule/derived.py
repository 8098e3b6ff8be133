"""Makes sizes that are quotients of other sizes integer arguments, so that equal work at several depths of a network shares one
kernel.

    a1[p0, p1] = relu(a0[p0, p1]),  p0, p1 < (n0 - 1)//2 + 1                         p0, p1 < n0
    a1[p0, p1] = relu(a0[p0, p1]),  p0, p1 < ((n0 - 1)//2 - 1)//2 + 1                p0, p1 < n0

The stages of a network halve its images. What they compute differs in nothing but the size, whose strides are polynomials in it:
with n = q + 1 in place of a quotient q, the stride q² + 2·q + 1 is n². The caller computes the size once, where a kernel would
compute nested quotients in every stride.

A quotient is replaced where the new size is positive: it is an axis's, or it may be another tensor's, one more than the quotient.
Of the latter only those are replaced that do not lengthen the loop's expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
from torch.utils._sympy.functions import FloorDiv

from polytile.ir import expr, sizes
from polytile.ir.loop import Axis, Loop


@dataclass(frozen=True)
class Derived:
    """`symbol` stands for `size`, which is `quotient` and a constant."""

    quotient: sympy.Expr
    size: sympy.Expr
    symbol: sympy.Symbol


def derived_of(loop: Loop) -> tuple[Derived, ...]:
    """The derived sizes of `loop` that its kernel takes as arguments, in order of appearance."""
    axes = frozenset(loop.ranges)
    extents = [axis.size for axis in loop.axes + loop.reduced]
    places = [index for node in expr.walk(*loop.roots) for index in node.indices]
    places = [*extents, *places, *(store.index for store in loop.stores)]
    derived: list[Derived] = []
    for quotient in dict.fromkeys(each for place in places for each in _quotients(place, axes)):
        size = next((extent for extent in extents if (extent - quotient).is_Integer), None)
        if size is None and not _is_below_a_size(quotient):
            continue
        symbol = sympy.Symbol(f"derived{len(derived)}", integer=True, positive=True)
        one = Derived(quotient, quotient + 1 if size is None else size, symbol)
        if size is not None or _terms(places, (one,)) <= _terms(places, ()):
            derived.append(one)
    return tuple(derived)


def _quotients(place: sympy.Expr, axes: frozenset[sympy.Symbol]) -> list[sympy.Expr]:
    """The outermost quotients of sizes alone in `place`."""
    if not sizes.has_division(place):
        return []
    if isinstance(place, FloorDiv) and not any(s in axes or s.name.startswith("ind") for s in sizes.symbols(place)):
        return [place]
    return [each for part in place.args for each in _quotients(part, axes)]


def _is_below_a_size(quotient: sympy.Expr) -> bool:
    """Whether a quotient of sizes is at least -1: one more may then be the size of a tensor, and is positive where the tensor has
    elements."""
    numerator, divisor = quotient.args
    inner = filter(_is_below_a_size, _quotients(numerator, frozenset()))
    least = numerator.xreplace({each: sympy.Dummy(integer=True, nonnegative=True) - 1 for each in inner})
    return bool(divisor.is_positive) and sizes.is_nonnegative(sizes.expand(least + divisor))


def _terms(places: Iterable[sympy.Expr], derived: Sequence[Derived]) -> int:
    return sum(len(sympy.Add.make_args(in_derived(place, derived))) for place in places)


def with_derived(loop: Loop, derived: Sequence[Derived]) -> Loop:
    """`loop` with the symbols of `derived` in its axes, values and accesses."""
    if not derived:
        return loop

    def index_map(index: sympy.Expr) -> sympy.Expr:
        return in_derived(index, derived)

    def axes(group: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(axis.symbol, index_map(axis.size)) for axis in group)

    mapped = loop.map_roots(lambda roots: expr.map_indices(roots, index_map), index_map)
    return replace(mapped, axes=axes(loop.axes), reduced=axes(loop.reduced))


def in_derived(number: sympy.Expr, derived: Sequence[Derived]) -> sympy.Expr:
    """A size or an index with the symbols of `derived`."""
    stands = {one.quotient: one.symbol - (one.size - one.quotient) for one in derived if number.has(one.quotient)}
    return sizes.expand(number.xreplace(stands)) if stands else number


def sizes_of(derived: Sequence[Derived]) -> Mapping[sympy.Expr, sympy.Expr]:
    """What the caller computes for each symbol."""
    return {one.symbol: one.size for one in derived}
