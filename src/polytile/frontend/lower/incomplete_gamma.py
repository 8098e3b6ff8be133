"""The regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x), in float64 for every type.

By a power series below x = a and a continued fraction above it, each an IR operation that goes on until the last of its points
is settled, as torch's kernels do. Where a is large and x near it these would take √a terms: there it is Temme's expansion, and
elsewhere no point takes more than some 200.
"""

from __future__ import annotations

import math

import torch

from polytile.frontend.lower import special_tables as tables
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise import elementwise
from polytile.frontend.lower.pointwise_table import TO_FLOAT, Element
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.term import Term, polynomial, where
from polytile.frontend.lower.value import Tensor, widen
from polytile.ir.expr import Node

INF, NAN = math.inf, math.nan
NEAR = 1.1
"""Up to this x the series is taken in any case: the fraction converges slowly near 0."""
LARGE, CLOSE = 200, 0.3
"""Temme's expansion is for a ≥ LARGE and |x/a - 1| < CLOSE."""


def _excess(a: Term, x: Term) -> Term:
    """s - log(1 + s) of s = x/a - 1, without cancellation: by the series of atanh where |s| < CLOSE."""
    s = (x - a) / a
    r = s / (2 + s)
    near = s * r - 2 * r * r * r * polynomial(r * r, [1 / k for k in range(23, 1, -2)])
    return where(abs(s) < CLOSE, near, s - (x / a).apply("log"))


def _stirling(a: Term) -> Term:
    """log Γ(a) - (a - ½) log a + a - ½ log 2π of a ≥ 9 (DLMF 5.11.1)."""
    v = 1 / a
    return v * polynomial(v * v, [-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12])


def _log_gamma_after(a: Term) -> Term:
    """log Γ(a + 1) of 0 < a < 20: up by 8 and then Stirling's series; near 0, where a + 1 has lost most of a, by its power series
    (DLMF 5.7.3)."""
    high, product = a + 9, a + 1
    for k in range(2, 9):
        product = product * (a + k)
    shifted = (a + 8.5) * high.apply("log") - high + 0.5 * math.log(2 * math.pi) + _stirling(high) - product.apply("log")
    return where(a < 0.05, a * polynomial(a, tables.LOG_GAMMA_AT_1), shifted)


def _factor(a: Term, x: Term, excess: Term) -> Term:
    """xᵃ e⁻ˣ / Γ(a + 1); from a = 20 on in a form whose terms do not cancel."""
    large = (-(a * excess) - _stirling(a)).apply("exp") / (2 * math.pi * a).apply("sqrt")
    small = (a * x.apply("log") - x - _log_gamma_after(a)).apply("exp")
    return where(a < 20, small, large)


def _temme(a: Term, x: Term, excess: Term, sign: int) -> Term:
    """½ erfc(± η √(a/2)) ± e^(-½ a η²) / √(2πa) Σ cₖ(η) a⁻ᵏ with ½ η² = `excess` (DLMF 8.12.3-4); + for Q."""
    eta = (2 * excess).apply("sqrt")
    eta = where(x < a, -eta, eta)
    v = 1 / a
    total = a.like(0)
    for row in tables.TEMME:
        total = total * v + polynomial(eta, row)
    total = (-(a * excess)).apply("exp") / (2 * math.pi * a).apply("sqrt") * total
    return 0.5 * (sign * eta * (0.5 * a).apply("sqrt")).apply("erfc") + sign * total


def _upper_near_zero(a: Term, x: Term) -> Term:
    """Q of x ≤ NEAR and a < 1, by a series whose terms change sign (DLMF 8.7.1); 17 of them are all that shows."""
    log = a * x.apply("log") - _log_gamma_after(a)
    power, total = x.like(1), x.like(0)
    for n in range(1, 18):
        power = power * x / -n
        total = total + power / (a + n)
    return -log.apply("expm1") - log.apply("exp") * a * total


def _inside(a: Term, x: Term, upper: bool) -> Term:
    """P, or Q, of finite a > 0 and x > 0."""
    excess = _excess(a, x)
    uniform = (a >= LARGE) & (abs(x - a) < CLOSE * a)
    below = (x <= NEAR) | (x < a)
    factor = _factor(a, x, excess)
    series = factor * a.apply("gamma_series", where(below & ~uniform, x, 0))
    others = below | uniform  # which leave the fraction at once, at values that mean nothing
    fraction = factor * a * where(others, 1, a).apply("gamma_fraction", where(others, 2, x))
    if upper:
        series = where((x <= NEAR) & (a < 1), _upper_near_zero(a, x), 1 - series)
        return where(uniform, _temme(a, x, excess, 1), where(below, series, fraction))
    return where(uniform, _temme(a, x, excess, -1), where(below, series, 1 - fraction))


def _incomplete(upper: bool) -> Element:
    """With torch's values at the ends of the range, in its order."""
    none, all_ = (1, 0) if upper else (0, 1)

    def of(a: Term, x: Term) -> Term:
        ends = (a <= 0) | (x <= 0) | a.apply("isinf") | x.apply("isinf")
        value = _inside(where(ends, 1, a), where(ends, 1, x), upper)
        value = where(x.apply("isinf"), all_, value)
        value = where(a.apply("isinf"), where(x.apply("isinf"), NAN, a.like(none)), value)
        value = where(x.equals(0), none, value)
        value = where(a.equals(0), where(x > 0, a.like(all_), NAN), value)
        return where((a < 0) | (x < 0), NAN, value)

    def element(a: Node, x: Node) -> Node:
        wide = (Term(widen(value, torch.float64)) for value in (a, x))
        return widen(of(*wide).node, a.dtype)

    return element


@lowers(*overloads("igamma"))
def igamma(builder: Builder, a: Tensor, x: Tensor) -> Tensor:
    return elementwise(builder, _incomplete(upper=False), TO_FLOAT, a, x)


@lowers(*overloads("igammac"))
def igammac(builder: Builder, a: Tensor, x: Tensor) -> Tensor:
    return elementwise(builder, _incomplete(upper=True), TO_FLOAT, a, x)
