"""Floor divisions, moduli and bounds of indices whose axes have known ranges.

The rules of `simplify` read like algebra:

    (d*q + r) // d  →  q          where 0 ≤ r < d
    (d*q + r) %  d  →  r          where 0 ≤ r < d
    d*(x // d) + x % d  →  x
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from polytile.ir.sizes import (
    MOD_CLASSES,
    ONE,
    ZERO,
    divide,
    expand,
    expanded,
    has_division,
    is_nonnegative,
    shifted,
    symbols,
    ungrouped,
)

Ranges = Mapping[sympy.Symbol, sympy.Expr]
"""The number of values of each axis, which runs from 0."""


def upper_bound(expr: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    """The largest value of an index over its axes' ranges, if it is linear in them with nonnegative coefficients; else None."""
    return _upper_bound(expr, _own(expr, ranges))


def highest(index: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    """The largest value over the ranges of an expression that is linear in its axes, with coefficients of either sign."""
    bound = ZERO
    for term in sympy.Add.make_args(simplify(index, ranges)):
        axes = [s for s in symbols(term) if s in ranges]
        if not axes:
            bound += term
        elif len(axes) == 1 and is_nonnegative(factor := term / axes[0]) and axes[0] not in symbols(factor):
            bound += factor * (ranges[axes[0]] - 1)
        elif is_nonnegative(-term):
            continue  # a term that is never positive has its maximum at 0
        else:
            top = upper_bound(term, ranges)
            if top is None:
                return None
            bound += top
    return expand(bound)


def _own(expr: sympy.Expr, ranges: Ranges) -> tuple[tuple[sympy.Symbol, sympy.Expr], ...]:
    """The part of `ranges` on which a rule's result for `expr` depends."""
    return tuple((symbol, ranges[symbol]) for symbol in _symbols(expr) if symbol in ranges)


@functools.lru_cache(maxsize=50_000)
def _symbols(expr: sympy.Expr) -> tuple[sympy.Symbol, ...]:
    return tuple(sorted(symbols(expr), key=str))


@functools.lru_cache(maxsize=100_000)
def _upper_bound(expr: sympy.Expr, own: tuple[tuple[sympy.Symbol, sympy.Expr], ...]) -> sympy.Expr | None:
    bound, ranges = ZERO, dict(own)
    by_axes: dict[sympy.Expr, sympy.Expr] = {}
    for term in sympy.Add.make_args(expand(expr)):
        if has_division(term):
            inner = _division_bound(term, ranges)
            if inner is None:
                return None
            bound += inner
            continue
        factor, axes = term.as_independent(*[s for s in symbols(term) if s in ranges], as_Add=False)
        by_axes[axes] = by_axes.get(axes, ZERO) + factor
    for axes, factor in by_axes.items():
        if not _is_nonnegative_within(expand(factor), ranges):
            return None
        bound += factor * axes.xreplace({a: ranges[a] - 1 for a in symbols(axes)})
    return expand(bound)


def _division_bound(term: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    """An upper bound of c·(x % d) or c·(x // d); None if there is none."""
    coefficient, factors = term.as_coeff_Mul()
    result = coefficient
    if coefficient < 0:
        return None
    for factor in sympy.Mul.make_args(factors):
        if isinstance(factor, MOD_CLASSES):
            result *= factor.args[1] - 1
        elif isinstance(factor, FloorDiv):
            top = upper_bound(factor.args[0], ranges)
            if top is None:
                return None
            exact = divide(expand(top + 1), factor.args[1])
            result *= (exact - 1) if exact is not None else FloorDiv(top, factor.args[1])
        elif factor in ranges:
            result *= ranges[factor] - 1
        elif factor.is_nonnegative:
            result *= factor
        else:
            return None
    return result


@functools.lru_cache(maxsize=100_000)
def split_by(expr: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """(q, r) with expr = divisor·q + r, where q collects everything that divides exactly."""
    expr = expand(expr)
    if expand(divisor).is_Add:
        return _long_division(expr, divisor)
    quotient, rest = ZERO, ZERO
    for term in sympy.Add.make_args(expr):
        exact = divide(term, divisor)
        if exact is None:
            rest += term
        else:
            quotient += exact
    return quotient, rest


@functools.lru_cache(maxsize=20_000)
def _long_division(expr: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """(q, r) by polynomial division in a symbol whose leading coefficient in the divisor is 1, as in s - 1.

    Without such a symbol, divides the coefficients of each product of axes.
    """
    for symbol in sorted(symbols(divisor), key=str):
        if has_division(expr + divisor) or not divisor.is_polynomial(symbol) or not expr.is_polynomial(symbol):
            continue
        top = sympy.Poly(divisor, symbol)
        if top.LC() == 1:
            quotient, rest = sympy.div(sympy.Poly(expr, symbol), top)
            return expand(quotient.as_expr()), expand(rest.as_expr())
    return _divided_by_axes(expr, divisor)


def _divided_by_axes(expr: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """(q, r) by dividing the coefficient of each product of axes, for example of p·(a - 1)·(b - 1) + q by (a - 1)·(b - 1)."""
    own = symbols(expr) - symbols(divisor)
    coefficients: dict[sympy.Expr, sympy.Expr] = {}
    for term in sympy.Add.make_args(expr):
        factor, axes = term.as_independent(*own, as_Add=False) if own else (term, ONE)
        coefficients[axes] = coefficients.get(axes, ZERO) + factor
    quotients = {axes: divide(factor, divisor) for axes, factor in coefficients.items()}
    exact = sympy.Add(*(axes * q for axes, q in quotients.items() if q is not None))
    rest = sympy.Add(*(axes * coefficients[axes] for axes, q in quotients.items() if q is None))
    return expand(exact), expand(rest)


def _fits_below(expr: sympy.Expr, divisor: sympy.Expr, ranges: Ranges) -> bool:
    """Whether 0 ≤ expr < divisor for all values."""
    bound = upper_bound(expr, ranges)
    return bound is not None and _is_nonnegative_within(expand(divisor - 1 - bound), dict(_own(expr, ranges)))


def _is_nonnegative_within(expr: sympy.Expr, ranges: Ranges) -> bool:
    """Whether `expr` ≥ 0 wherever the ranges are nonempty: a range of s - 3 elements implies s - 3 > 0."""
    if is_nonnegative(expr):
        return True
    known = {s: shifted(s) + least for n in ranges.values() for s, least in _least(n) if s in symbols(expr)}
    return bool(known) and is_nonnegative(expand(expr.xreplace(known)))


def _least(extent: sympy.Expr) -> tuple[tuple[sympy.Symbol, sympy.Expr], ...]:
    """(s, n) for an extent s - n, which implies s > n."""
    own = symbols(extent)
    least = next(iter(own)) - extent if len(own) == 1 else ZERO
    return ((next(iter(own)), least),) if least.is_Integer and least > 0 else ()


def floor_div(x: sympy.Expr, d: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    """x // d for x ≥ 0 and d > 0, simplified for the axes' ranges."""
    if d == 1:
        return x
    quotient, rest = split_by(x, d)
    if rest == 0 or _fits_below(rest, d, ranges):
        return quotient
    if is_nonnegative(rest) or quotient == 0:
        return quotient + FloorDiv(*_reduced(rest, d))
    return FloorDiv(x, d)


def _reduced(x: sympy.Expr, d: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Cancel a common factor of the divisor and all non-constant terms: (2·h + 1) // 32 = h // 16."""
    constant, terms = x.as_coeff_Add()
    coefficients = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(terms)]
    if constant == 0 or not all(n.is_Integer for n in (constant, d, *coefficients)):
        return x, d
    common = sympy.igcd(d, *coefficients)
    return expand(terms / common) + constant // common, d // common


def modulo(x: sympy.Expr, d: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    """x % d for x ≥ 0 and d > 0, simplified for the axes' ranges."""
    if d == 1:
        return ZERO
    _, rest = split_by(x, d)
    if rest == 0 or _fits_below(rest, d, ranges):
        return rest
    if is_nonnegative(rest):
        return _modulus(rest, d)
    return _modulus(x, d) if is_nonnegative(x) else PythonMod(x, d)


def _modulus(x: sympy.Expr, d: sympy.Expr) -> sympy.Expr:
    """An unevaluated x % d, for which no rule above applies. torch's class would ask sympy whether x < d, which takes long to
    answer."""
    return Mod(x, d, evaluate=x.is_number or d == 2)


def simplify(expr: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    """`expr`, ungrouped and expanded, without the divisions and moduli that the ranges make redundant."""
    if not symbols(expr):
        return expr
    if not has_division(expr):
        return expanded(expr)
    return _simplified(expr, _own(expr, ranges))


@functools.lru_cache(maxsize=100_000)
def _simplified(expr: sympy.Expr, own: tuple[tuple[sympy.Symbol, sympy.Expr], ...]) -> sympy.Expr:
    return _rejoin(expand(_simplify_divisions(ungrouped(expr), dict(own))))


def _simplify_divisions(expr: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    if not expr.args or not has_division(expr):
        return expr
    return _without_divisions(expr, _own(expr, ranges))


@functools.lru_cache(maxsize=50_000)
def _without_divisions(expr: sympy.Expr, own: tuple[tuple[sympy.Symbol, sympy.Expr], ...]) -> sympy.Expr:
    """`expr` with its divisions simplified, memoised: the sizes after strided convolutions are nested divisions, and occur in
    every stride of the tensors that follow."""
    ranges = dict(own)
    args = [_simplify_divisions(a, ranges) for a in expr.args]
    if isinstance(expr, FloorDiv):
        return floor_div(args[0], args[1], ranges)
    if isinstance(expr, ModularIndexing):
        return modulo(floor_div(args[0], args[1], ranges), args[2], ranges)
    if isinstance(expr, MOD_CLASSES):
        return modulo(args[0], args[1], ranges)
    return expr.func(*args)


def _rejoin(expr: sympy.Expr) -> sympy.Expr:
    """d*(x // d) + x % d → x, with any common factor."""
    if not expr.is_Add or not expr.has(Mod):
        return expr
    terms = list(expr.args)
    for term in terms:
        for factor in sympy.Mul.make_args(term):
            if not isinstance(factor, Mod):
                continue
            x, d = factor.args
            scale = term / factor
            partner = sympy.Add.make_args(expand(scale * d * FloorDiv(x, d)))
            if all(p in terms for p in partner):
                rest = [t for t in terms if t != term and t not in partner]
                return _rejoin(expand(sympy.Add(*rest) + scale * x))
    return expr
