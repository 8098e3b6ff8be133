"""Index expressions as text, in the dialects of the generated languages.

In both languages, division truncates towards zero and a remainder has the dividend's sign; an index divides as Python
does:

    x // d   →  x / d                       where x ≥ 0 for every value of its symbols
                (x - (x % d + d) % d) / d   elsewhere
    x % d    →  x % d                       where x ≥ 0
                (x % d + d) % d             elsewhere

Divisors are positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, ModularIndexing, PythonMod

from polytile.errors import LoweringError
from polytile.ir import sizes

MAXIMA, MINIMA = (Max, sympy.Max), (Min, sympy.Min)
"""torch's own classes and sympy's equivalents."""


@dataclass(frozen=True)
class Dialect:
    """What the languages spell differently: integer division, and the maximum and minimum of {0} and {1}."""

    name: str
    divide: str
    greater: str
    less: str


CPP = Dialect("C++", "/", "({0} > {1} ? {0} : {1})", "({0} < {1} ? {0} : {1})")
TRITON = Dialect("Triton", "//", "tl.maximum({0}, {1})", "tl.minimum({0}, {1})")


def index(e: sympy.Expr, dialect: Dialect) -> str:
    """An index expression over integer variables named like its symbols. Raises LoweringError for an expression without
    a form."""
    if isinstance(e, sympy.Add):
        return " + ".join(_product(a, dialect) for a in e.as_ordered_terms()).replace("+ -", "- ")
    return _product(e, dialect)


def _product(e: sympy.Expr, dialect: Dialect) -> str:
    if isinstance(e, sympy.Mul):
        return "*".join(factor(a, dialect) for a in e.args)
    return factor(e, dialect)


def factor(e: sympy.Expr, dialect: Dialect) -> str:
    """An index expression that may appear as an operand of any other. Raises LoweringError for an expression that no
    kernel can compute."""
    match e:
        case sympy.Symbol():
            return e.name
        case sympy.Integer():
            return str(e) if e >= 0 else f"({e})"
        case sympy.Add() | sympy.Mul():
            return f"({index(e, dialect)})"
        case sympy.Pow() if e.exp.is_Integer and e.exp > 0:
            return "(" + "*".join([factor(e.base, dialect)] * int(e.exp)) + ")"
    args = [factor(a, dialect) for a in e.args]
    exact = bool(args) and sizes.is_nonnegative(e.args[0])
    match e:
        case FloorDiv():
            return _quotient(args[0], args[1], exact, dialect)
        case Mod() | PythonMod():
            return _remainder(args[0], args[1], exact)
        case ModularIndexing():
            return _remainder(_quotient(args[0], args[1], exact, dialect), args[2], exact)
    if isinstance(e, MAXIMA + MINIMA):
        return _extreme(args, dialect.greater if isinstance(e, MAXIMA) else dialect.less)
    raise LoweringError(
        f"the index expression {e} ({type(e).__name__}) has no {dialect.name} form; the operator runs as a library call."
    )


def _quotient(x: str, d: str, exact: bool, dialect: Dialect) -> str:
    return f"({x} {dialect.divide} {d})" if exact else f"(({x} - {_remainder(x, d, False)}) {dialect.divide} {d})"


def _remainder(x: str, d: str, exact: bool) -> str:
    return f"({x} % {d})" if exact else f"(({x} % {d} + {d}) % {d})"


def _extreme(args: Sequence[str], form: str) -> str:
    result = args[0]
    for other in args[1:]:
        result = form.format(result, other)
    return result
