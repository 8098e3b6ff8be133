"""Orthogonal polynomials: those of large degree in closed form where there is one, the others by an IR operation that goes up
one degree a step.

The degree is data, so the operation's steps are as many as the largest degree among its points, as in torch's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from polytile.frontend.lower.term import Term, where

NAN = math.nan


@dataclass(frozen=True)
class Chebyshev:
    """`at_one`, `at_minus_one`: the values there, the latter for even degrees (odd ones have the other sign); `closed`: the
    value of degree n at cos(angle), from degree `least` on (DLMF 18.5.1-4)."""

    at_one: Callable[[Term], Term]
    at_minus_one: Callable[[Term], Term]
    closed: Callable[[Term, Term], Term]
    least: int


def _one(n: Term) -> Term:
    return n.like(1)


def _next(n: Term) -> Term:
    return n + 1


def _odd(n: Term) -> Term:
    return n + n + 1


def _of(name: str, x: Term) -> Term:
    return x.apply(name)


CHEBYSHEV = {
    "t": Chebyshev(_one, _one, lambda n, a: _of("cos", n * a), 7),
    "u": Chebyshev(_next, _next, lambda n, a: _of("sin", (n + 1) * a) / _of("sin", a), 9),
    "v": Chebyshev(_one, _odd, lambda n, a: _of("cos", (n + 0.5) * a) / _of("cos", 0.5 * a), 9),
    "w": Chebyshev(_odd, _one, lambda n, a: _of("sin", (n + 0.5) * a) / _of("sin", 0.5 * a), 9),
}

HERMITE_LIMIT = {torch.float32: 128, torch.float64: 512}
"""The degrees beyond which torch returns NaN."""


def _of_degree(n: Term, value: Callable[[Term], Term]) -> Term:
    """`value` of the whole part of n; 0 below 0, and for what is no degree at all."""
    degree = n.apply("trunc")
    valid = (degree >= 0) & (degree < 2.0**63)
    return where(valid, value(where(valid, degree, 0)), 0)


def chebyshev_polynomial(kind: str, shifted: bool) -> Callable[[Term, Term], Term]:
    """Of the first to the fourth kind ("t", "u", "v", "w") at x, or at 2x - 1."""
    known = CHEBYSHEV[kind]

    def of(x: Term, n: Term) -> Term:
        x = x + x - 1 if shifted else x

        def value(n: Term) -> Term:
            inside, end = (abs(x) < 1) & (n >= known.least), abs(x).equals(1)
            stepped = x.apply(f"chebyshev_{kind}", where(inside | end, 0, n))
            even = (0.5 * n).whole
            at_minus_one = where(even, known.at_minus_one(n), -known.at_minus_one(n))
            ends = where(x > 0, known.at_one(n), at_minus_one)
            return where(end, ends, where(inside, known.closed(n, x.apply("acos")), stepped))

        return _of_degree(n, value)

    return of


def hermite_polynomial(name: str) -> Callable[[Term, Term], Term]:
    def of(x: Term, n: Term) -> Term:
        limit = HERMITE_LIMIT[x.node.dtype]

        def value(n: Term) -> Term:
            return where(n > limit, NAN, x.apply(name, where(n > limit, 0, n)))

        return _of_degree(n, value)

    return of


def laguerre_polynomial(x: Term, n: Term) -> Term:
    at_zero = x.equals(0)
    return _of_degree(n, lambda n: where(at_zero, 1, x.apply("laguerre_l", where(at_zero, 0, n))))


def legendre_polynomial(x: Term, n: Term) -> Term:
    end = abs(x).equals(1)

    def value(n: Term) -> Term:
        sign = where((x > 0) | (0.5 * n).whole, x.like(1), -1)
        return where(end, sign, x.apply("legendre_p", where(end, 0, n)))

    return _of_degree(n, value)
