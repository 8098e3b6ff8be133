"""Bounds the keys that a block of queries attends to, by interval arithmetic on the mask expression.

    mask                          some query of [i0, i1] sees keys of      all of them see
    j <= i                        [0, i1 + 1)                              [0, i0 + 1)
    j <= i and j > i - w          [i0 - w + 1, i1 + 1)                     [i1 - w + 1, i0 + 1)
    j < p or j <= i               [0, max(p, i1 + 1))                      [0, max(p, i0 + 1))
    j // c == i // c              [c·(i0 // c), c·(i1 // c) + c)           [c·(i1 // c), c·(i0 // c) + c)
    anything else                 [0, N)                                   nothing

A bound follows from each comparison of a sum that contains j, or one quotient of j, with a value that does not depend on j. A
value that is not an expression of positions and integers, such as a loaded length, is opaque: if it does not depend on j, its
minimum and maximum over the block's rows bound it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.attention.scores import KEY, QUERY
from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Node, Op

FIRST, LAST = sizes.axis("first"), sizes.axis("last")
"""Symbols of the first and the last query of a block."""
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_AND, _OR = ("logical_and", "bitwise_and", "mul", "minimum"), ("logical_or", "bitwise_or", "add", "maximum")
_NOT = ("logical_not", "bitwise_not")


@dataclass(frozen=True)
class Interval:
    """`low` ≤ j < `high`; None means unbounded on that side."""

    low: sympy.Expr | None = None
    high: sympy.Expr | None = None

    def mapped(self, change: Callable[[sympy.Expr], sympy.Expr]) -> Interval:
        """The interval with both ends changed."""
        return Interval(*(None if end is None else change(end) for end in (self.low, self.high)))


@dataclass(frozen=True)
class Bounds:
    """No query of the block attends to keys outside `some`; every query attends to all keys in `all`, unless `all` is None."""

    some: Interval
    all: Interval | None


EVERYTHING = Interval()
UNKNOWN = Bounds(EVERYTHING, None)
NOTHING = Bounds(Interval(sizes.ZERO, sizes.ZERO), None)
WHOLE = Bounds(EVERYTHING, EVERYTHING)


@dataclass(frozen=True)
class Range:
    """The minimum and maximum of an integer over the rows of a block."""

    least: sympy.Expr
    most: sympy.Expr


class Analysis:
    """Computes the bounds of masks. `opaque` is called for a value that does not depend on the key but cannot be analysed; it
    returns the symbols of its minimum and maximum, or None."""

    def __init__(self, opaque: Callable[[Node], Range | None] = lambda node: None) -> None:
        self._opaque = opaque
        self._ranges: dict[sympy.Symbol, Range] = {QUERY: Range(FIRST, LAST)}
        self._symbols: dict[int, sympy.Symbol] = {}

    def bounds(self, mask: Node, negated: bool = False) -> Bounds:
        """Bounds of the keys for which `mask` is true, or false if `negated`."""
        match mask:
            case Const(value=value):
                return WHOLE if bool(value) != negated else NOTHING
            case Op(name=name, args=(arg,)) if name in _NOT:
                return self.bounds(arg, not negated)
            case Op(name="cast", args=(arg,)) if arg.dtype == torch.bool and mask.dtype == torch.bool:
                return self.bounds(arg, negated)
            case Op(name=name, args=(a, b)) if name in _AND + _OR and a.dtype == b.dtype == torch.bool:
                join = _both if (name in _AND) != negated else _either
                return join(self.bounds(a, negated), self.bounds(b, negated))
            case Op(name=name, args=(a, b)) if name in _NEGATED and not a.dtype.is_floating_point:
                return self._comparison(_NEGATED[name] if negated else name, a, b)
        return UNKNOWN

    # comparisons -------------------------------------------------------------------------------------------------------

    def _comparison(self, name: str, a: Node, b: Node) -> Bounds:
        left, right = self._integer(a), self._integer(b)
        if left is None or right is None:
            return UNKNOWN
        if not self._depends(left - right) and name != "ne":  # uniform over all keys: a length or a switch
            return UNKNOWN
        return self._solved(name, sizes.expand(left - right))

    def _depends(self, e: sympy.Expr) -> bool:
        return KEY in e.free_symbols

    def _solved(self, name: str, e: sympy.Expr) -> Bounds:
        """Bounds from comparing `e` with 0: separate ±f(j) from the terms that do not depend on j."""
        terms = sympy.Add.make_args(e)
        own = [term for term in terms if self._depends(term)]
        rest = self._range(-sympy.Add(*[term for term in terms if not self._depends(term)]))
        if len(own) != 1 or rest is None or name == "ne":
            return UNKNOWN
        factor, of_key = own[0].as_coeff_Mul()
        if factor == -1:
            name, rest = _TURNED[name], Range(-rest.most, -rest.least)
        elif factor != 1:
            return UNKNOWN
        return _sides(name, of_key, rest)

    # integers ----------------------------------------------------------------------------------------------------------

    def _integer(self, node: Node) -> sympy.Expr | None:
        """An integer node as an index expression, if it is one."""
        match node:
            case Const(value=value):
                return sympy.Integer(int(value))
            case Index(expr=e):
                return e
            case Op(name="cast", args=(arg,)) if not node.dtype.is_floating_point and arg.dtype != torch.bool:
                return None if arg.dtype.is_floating_point or node.dtype.itemsize < 4 else self._integer(arg)
            case Op(name="add" | "sub" | "neg" | "mul" as name, args=args):
                values = [self._integer(arg) for arg in args]
                known = [value for value in values if value is not None]
                if len(known) == len(values):
                    return sizes.expand(_ARITHMETIC[name](*known))
            case Op(name="floordiv", args=(a, Const(value=by))) if by > 0 and (whole := self._integer(a)) is not None:
                return FloorDiv(whole, sympy.Integer(int(by)))
        return self._loaded(node)

    def _loaded(self, node: Node) -> sympy.Expr | None:
        if KEY in expr.free_symbols(node):
            return None
        if id(node) not in self._symbols:
            value_range = self._opaque(node)
            if value_range is None:
                return None
            name = self._symbols[id(node)] = sympy.Symbol(f"value{len(self._symbols)}", integer=True)
            self._ranges[name] = value_range
        return self._symbols[id(node)]

    def _range(self, e: sympy.Expr) -> Range | None:
        """The minimum and maximum over the rows of a block of `e`, which does not depend on the key; None if unknown."""
        if e in self._ranges:
            return self._ranges[e]
        if not e.free_symbols & self._ranges.keys():
            return Range(e, e)
        if isinstance(e, sympy.Add | sympy.Min | sympy.Max):
            parts = [self._range(arg) for arg in e.args]
            known = [part for part in parts if part is not None]
            same = type(e)
            return Range(same(*[p.least for p in known]), same(*[p.most for p in known])) if len(known) == len(parts) else None
        if isinstance(e, FloorDiv) and not e.args[1].free_symbols & self._ranges.keys():
            part = self._range(e.args[0])
            return part and Range(FloorDiv(part.least, e.args[1]), FloorDiv(part.most, e.args[1]))
        factor, value = e.as_coeff_Mul()
        part = self._range(value) if factor != 1 else None
        if part is None:
            return None
        ends = factor * part.least, factor * part.most
        return Range(*ends) if factor > 0 else Range(*ends[::-1])


_ARITHMETIC: Mapping[str, Callable[..., sympy.Expr]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "neg": lambda a: -a, "mul": lambda a, b: a * b,
}  # fmt: skip


def _sides(name: str, of_key: sympy.Expr, rest: Range) -> Bounds:
    """Bounds from comparing f(j) with a value in `rest`."""
    below, above = _below(of_key), _from(of_key)
    if below is None or above is None:
        return UNKNOWN
    match name:
        case "lt":
            return Bounds(Interval(high=below(rest.most)), Interval(high=below(rest.least)))
        case "le":
            return Bounds(Interval(high=below(rest.most + 1)), Interval(high=below(rest.least + 1)))
        case "ge":
            return Bounds(Interval(low=above(rest.least)), Interval(low=above(rest.most)))
        case "gt":
            return Bounds(Interval(low=above(rest.least + 1)), Interval(low=above(rest.most + 1)))
    return _both(_sides("ge", of_key, rest), _sides("le", of_key, rest))


def _below(of_key: sympy.Expr) -> Callable[[sympy.Expr], sympy.Expr] | None:
    """Maps a bound x of f to one of j: f(j) < x if and only if j is below it. None if f is not invertible this way."""
    if of_key == KEY:
        return lambda x: x
    inner = _quotient(of_key)
    return None if inner is None else lambda x: x * inner[1] - inner[0]


_from = _below
"""f(j) ≥ x if and only if j is at or above the same bound, as f is monotonic."""


def _quotient(of_key: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
    """(c, d) if the expression is (j + c) // d, else None."""
    if not isinstance(of_key, FloorDiv) or KEY in of_key.args[1].free_symbols:
        return None
    offset = sizes.expand(of_key.args[0] - KEY)
    plain = not offset.free_symbols & {QUERY, KEY}
    return (offset, of_key.args[1]) if plain else None


# and, or ---------------------------------------------------------------------------------------------------------------


def _both(a: Bounds, b: Bounds) -> Bounds:
    return Bounds(_common(a.some, b.some), _common(a.all, b.all) if a.all is not None and b.all is not None else None)


def _common(a: Interval, b: Interval) -> Interval:
    return Interval(_extreme(sympy.Max, a.low, b.low), _extreme(sympy.Min, a.high, b.high))


def _extreme(which: Callable[..., sympy.Expr], a: sympy.Expr | None, b: sympy.Expr | None) -> sympy.Expr | None:
    return b if a is None else a if b is None else which(a, b)


def _either(a: Bounds, b: Bounds) -> Bounds:
    if a is NOTHING or b is NOTHING:
        return b if a is NOTHING else a
    low = None if a.some.low is None or b.some.low is None else sympy.Min(a.some.low, b.some.low)
    high = None if a.some.high is None or b.some.high is None else sympy.Max(a.some.high, b.some.high)
    return Bounds(Interval(low, high), _union(a.all, b.all))


def _union(a: Interval | None, b: Interval | None) -> Interval | None:
    """An interval inside the union of two. It is the whole union if both are open on the same side."""
    if a is None or b is None:
        return a or b
    if a.low is None and b.low is None:
        return Interval(high=None if a.high is None or b.high is None else sympy.Max(a.high, b.high))
    if a.high is None and b.high is None:
        return Interval(low=None if a.low is None or b.low is None else sympy.Min(a.low, b.low))
    return a
