"""Symbolic sizes and index algebra: exact integer polynomials with floor division and modulus.

A size is a sympy expression over the ShapeEnv's positive integer symbols. An index may also contain loop axes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._sympy.functions import FloorDiv, Identity, Max, Mod, ModularIndexing, PythonMod

Size = sympy.Expr

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
MOD_CLASSES = (Mod, PythonMod)
_WORK_SYMBOLS: dict[sympy.Symbol, sympy.Symbol] = {}


def axis(name: str) -> sympy.Symbol:
    """A loop axis or other index variable: an integer ≥ 0."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def as_size(value: object) -> sympy.Expr:
    """An int, sympy expression or torch.SymInt as an exact sympy expression, without specialising a SymInt.

    An expression that the guards already fix at 1 becomes 1, so that it broadcasts. The same holds for each factor of a product,
    such as a size within a stride.

    Raises
    ------
    TypeError
        If `value` is none of these.
    """
    if isinstance(value, sympy.Expr):
        return value
    if isinstance(value, int):
        return sympy.Integer(value)
    node = getattr(value, "node", None)
    if node is None:
        raise TypeError(f"{value!r} of type {type(value).__name__} is not a size.")
    expr = node.expr
    if isinstance(value, torch.SymInt) and not expr.is_Atom:
        if statically_known_true(value == 1):
            return ONE
        if expr.is_Mul:
            expr = expr.func(*[factor for factor in expr.args if not _held_to_one(factor, node.shape_env)])
    return ungrouped(expr)


def _held_to_one(factor: sympy.Expr, guards: ShapeEnv) -> bool:
    if factor.is_Atom:
        return False
    return statically_known_true(guards.create_symintnode(factor, hint=None) == 1)


def ungrouped(expr: sympy.Expr) -> sympy.Expr:
    """`expr` without torch's grouping wrapper, Identity(x) → x, which would hide patterns from every rule."""
    return expr.replace(Identity, lambda inner: inner) if expr.has(Identity) else expr


def as_stride(value: object) -> sympy.Expr:
    """A traced stride as an exact sympy expression, like `as_size`.

    torch writes max(1, n) for a size n that may be 0. The guard is dropped: with n = 0 the tensor has no elements.
    """
    return unguarded(as_size(value), ONE)


def unguarded(size: sympy.Expr, least: sympy.Expr = ZERO) -> sympy.Expr:
    """`size` with every max(least, n) replaced by n."""
    return size.xreplace({e: next(a for a in e.args if a != least) for e in guards(size, least)})


def guards(size: sympy.Expr, least: sympy.Expr) -> list[sympy.Expr]:
    """Every max(least, n) in `size`."""
    return [e for e in size.atoms(sympy.Max, Max) if len(e.args) == 2 and least in e.args]


def product(sizes: Iterable[sympy.Expr]) -> sympy.Expr:
    """The product of sizes; 1 if there are none."""
    return sympy.prod(list(sizes), start=ONE) if sizes else ONE


def contiguous_strides(sizes: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Row-major strides in elements. As in torch, a dimension of size 0 counts as 1."""
    strides, running = [], ONE
    for size in reversed(sizes):
        strides.append(running)
        running = running * (sympy.Max(size, 1) if size == 0 else size)
    return tuple(reversed(strides))


def channels_last_strides(sizes: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Strides (in elements) of images (batch, channel, *spatial) in channels-last layout."""
    batch, channels, *spatial = sizes
    outer, *inner = contiguous_strides((batch, *spatial, channels))
    return outer, inner[-1], *inner[:-1]


@functools.lru_cache(maxsize=100_000)
def symbols(expr: sympy.Basic) -> frozenset[sympy.Symbol]:
    """`expr.free_symbols`, memoised: sympy walks the whole expression each time."""
    return frozenset().union(*map(symbols, expr.args)) if expr.args else frozenset(expr.free_symbols)


@functools.lru_cache(maxsize=100_000)
def structure(expr: sympy.Basic) -> str:
    """A string that only equal expressions share, built from those of the arguments. sympy's own printer takes about ten times as
    long."""
    return f"{type(expr).__name__}({', '.join(map(structure, expr.args))})" if expr.args else str(expr)


@functools.lru_cache(maxsize=50_000)
def expand(expr: sympy.Expr) -> sympy.Expr:
    """`sympy.expand(expr)`, including the operands of divisions.

    Each division is expanded only once. torch's division classes are slow to construct, and every term of a padded image's size
    in a sliding window contains several nested ones.
    """
    if _is_expanded(expr):
        return expr
    if not has_division(expr):
        return sympy.expand(expr)
    if _is_division(expr):
        return expr.func(*map(expand, expr.args))
    divisions = {division: expand(division) for division in _outermost_divisions(expr)}
    stand_ins = {division: _stand_in(made) for division, made in divisions.items()}
    flat = sympy.expand(expr.xreplace(stand_ins))
    made = flat.xreplace({stand_ins[division]: made for division, made in divisions.items()})
    return made if all(map(_is_division, divisions.values())) else sympy.expand(made)


def _is_expanded(expr: sympy.Expr) -> bool:
    """Whether `expr` is visibly a sum of products, as most indices are. sympy takes long to find this out."""
    return all(_is_factor(factor) for term in sympy.Add.make_args(expr) for factor in sympy.Mul.make_args(term))


def _is_factor(expr: sympy.Expr) -> bool:
    """Whether `expr` is an atom, an integer power of a symbol, or a division of sums of products."""
    if _is_division(expr):
        return all(map(_is_expanded, expr.args))
    return expr.is_Atom or bool(expr.is_Pow and expr.base.is_Symbol and expr.exp.is_Integer)


def _is_division(expr: sympy.Expr) -> bool:
    return isinstance(expr, FloorDiv | ModularIndexing | Mod | PythonMod)


def _outermost_divisions(expr: sympy.Expr) -> set[sympy.Expr]:
    if _is_division(expr):
        return {expr}
    return set().union(*map(_outermost_divisions, expr.args)) if expr.args else set()


@functools.lru_cache(maxsize=20_000)
def _stand_in(division: sympy.Expr) -> sympy.Symbol:
    return sympy.Dummy(integer=True, nonnegative=division.is_nonnegative or None)


@functools.lru_cache(maxsize=100_000)
def is_nonnegative(expr: sympy.Expr) -> bool:
    """Whether `expr` ≥ 0 for all values of its symbols.

    Each positive symbol s is written s' + 1 with s' ≥ 0; then no coefficient of the expanded polynomial may be negative. The test
    is sufficient, not necessary.
    """
    if expr.is_Integer:
        return bool(expr >= 0)
    if has_division(expr):
        return is_nonnegative(expr.xreplace({division: _stand_in(division) for division in _outermost_divisions(expr)}))
    if expr.is_nonnegative:
        return True
    above = expr.xreplace({s: shifted(s) for s in symbols(expr) if s.is_positive})
    terms = sympy.Add.make_args(expand(above))
    return all(_nonnegative_term(term) for term in terms)


def shifted(symbol: sympy.Symbol) -> sympy.Expr:
    """s' + 1 for a positive symbol s, where s' ≥ 0."""
    if symbol not in _WORK_SYMBOLS:
        _WORK_SYMBOLS[symbol] = sympy.Symbol(symbol.name + "'", integer=True, nonnegative=True)
    return _WORK_SYMBOLS[symbol] + 1


def _nonnegative_term(term: sympy.Expr) -> bool:
    coefficient, rest = term.as_coeff_Mul()
    return bool(coefficient >= 0) and (rest == 1 or bool(rest.is_nonnegative))


@functools.lru_cache(maxsize=100_000)
def equal(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether a = b for all values of the symbols, by expansion. Exact quotients such as s²//s are cancelled."""
    if a == b or expand(a - b) == 0:
        return True
    return has_division(a - b) and expand((a - b).replace(FloorDiv, _quotient)) == 0


def _quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    exact = divide(a, b)
    return FloorDiv(a, b) if exact is None else exact


@functools.lru_cache(maxsize=100_000)
def divide(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """a / b if the division is exact for polynomials with integer coefficients, else None."""
    if b == 1:
        return a
    if a == b:
        return ONE
    if a == 0:
        return ZERO
    if a.is_Integer and b.is_Integer:
        return a // b if a % b == 0 else None
    quotient = sympy.cancel(expand(a) / expand(b)) if not has_division(a + b) else expand(a) / b
    numerator, denominator = quotient.as_numer_denom()
    return expand(numerator) if denominator == 1 else None


@functools.lru_cache(maxsize=50_000)
def has_division(expr: sympy.Expr) -> bool:
    """Whether `expr` contains a floor division or modulus."""
    return isinstance(expr, sympy.Basic) and expr.has(FloorDiv, ModularIndexing, *MOD_CLASSES)


@functools.lru_cache(maxsize=100_000)
def expanded(expr: sympy.Expr) -> sympy.Expr:
    """`expr`, ungrouped, as a sum of products."""
    return expand(ungrouped(expr))


@functools.lru_cache(maxsize=100_000)
def coefficient(expr: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """c in expr = c·symbol + rest, where neither c nor rest contains symbol; None if expr is not linear in symbol."""
    if symbol not in symbols(expr):
        return ZERO
    total = ZERO
    for term in sympy.Add.make_args(expanded(expr)):
        if symbol not in symbols(term):
            continue
        rest = term / symbol
        if symbol in symbols(rest):
            return None
        total += rest
    return total


def solve(equal_to: sympy.Expr, symbol: sympy.Symbol, value: sympy.Expr) -> sympy.Expr | None:
    """Solve c·symbol + d = value for the symbol: (value - d) // c. None if `equal_to` is not of the form c·symbol + d."""
    factor = coefficient(equal_to, symbol)
    if factor is None or factor == 0:
        return None
    rest = expand(equal_to - factor * symbol)
    return value if factor == 1 and rest == 0 else FloorDiv(value - rest, factor)


def substitute(expr: sympy.Expr, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """Replace symbols simultaneously."""
    own = symbols(expr) & mapping.keys()
    return _substituted(expr, frozenset((symbol, mapping[symbol]) for symbol in own)) if own else expr


@functools.lru_cache(maxsize=100_000)
def _substituted(expr: sympy.Expr, mapping: frozenset[tuple[sympy.Symbol, sympy.Expr]]) -> sympy.Expr:
    return expr.xreplace(dict(mapping))


def evaluate(expr: sympy.Expr, values: Mapping[sympy.Symbol, int]) -> int:
    """The integer value of `expr`.

    Raises
    ------
    KeyError
        If `values` lacks a symbol. The message names it.
    """
    if expr.is_Symbol and expr in values:
        return values[expr]
    if expr.is_Integer:
        return int(expr)
    if (expr.is_Mul or expr.is_Add) and all(part.is_integer for part in expr.args):  # 30 times as fast as sympy
        parts = [evaluate(part, values) for part in expr.args]
        return math.prod(parts) if expr.is_Mul else sum(parts)
    missing = [s for s in symbols(expr) if s not in values]
    if missing:
        raise KeyError(f"size {expr} needs a value for {missing[0]}")
    return int(expr.xreplace({s: sympy.Integer(values[s]) for s in symbols(expr)}))
