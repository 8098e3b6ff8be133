"""Special functions as expressions of arithmetic, exponentials and roots, for every code generator alike.

Each formula names its source; the coefficients are in special_tables.py. Branches are computed both and chosen by `where`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polytile.frontend.lower import special_tables as tables
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise import elementwise, integer_power, register
from polytile.frontend.lower.pointwise_table import TO_FLOAT, Row
from polytile.frontend.lower.polynomials import (
    chebyshev_polynomial,
    hermite_polynomial,
    laguerre_polynomial,
    legendre_polynomial,
)
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.special_tables import Ratio
from polytile.frontend.lower.term import Term, chebyshev, formula, polynomial, where
from polytile.frontend.lower.value import Tensor
from polytile.ir.expr import Const

INF, NAN = math.inf, math.nan


def ratio(x: Term, coefficients: Ratio) -> Term:
    return polynomial(x, coefficients.over) / polynomial(x, coefficients.under)


# Bessel functions (Cephes j0.c, j1.c) ---------------------------------------------------------------------------------


def _bessel_far(x: Term, order: int, first: str, second: str) -> Term:
    """√(2/(πx)) (P cos(x - φ) - 5/x Q sin(x - φ)), φ = π/4 + order π/2, of x > 5 (DLMF 10.17.3); for the second kind sine and
    cosine change places, and the sign does."""
    cosine, sine = (tables.COSINE_0, tables.SINE_0) if order == 0 else (tables.COSINE_1, tables.SINE_1)
    z, angle = (5 / x) * (5 / x), x - (0.25 + 0.5 * order) * math.pi
    p, q = ratio(z, cosine) * angle.apply(first), 5 / x * ratio(z, sine) * angle.apply(second)
    return (p - q if first == "cos" else p + q) * math.sqrt(2 / math.pi) / x.apply("sqrt")


def bessel_j0(x: Term) -> Term:
    a = abs(x)
    z = x * x
    near = (z - 5.783185962946784521) * (z - 30.47126234366208640) * ratio(z, tables.J0_NEAR)
    return where(a <= 5, near, _bessel_far(a, 0, "cos", "sin"))


def bessel_j1(x: Term) -> Term:
    a = abs(x)
    z = x * x
    near = ratio(z, tables.J1_NEAR) * x * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)
    far = _bessel_far(a, 1, "cos", "sin")
    return where(a <= 5, near, where(x < 0, -far, far))


def _of_positive(x: Term, value: Term, at_zero: float) -> Term:
    return where(x.equals(0), at_zero, where(x < 0, NAN, value))


def bessel_y0(x: Term) -> Term:
    near = ratio(x * x, tables.Y0_NEAR) + 2 / math.pi * x.apply("log") * bessel_j0(x)
    return _of_positive(x, where(x <= 5, near, _bessel_far(x, 0, "sin", "cos")), -INF)


def bessel_y1(x: Term) -> Term:
    near = x * ratio(x * x, tables.Y1_NEAR) + 2 / math.pi * (bessel_j1(x) * x.apply("log") - 1 / x)
    return _of_positive(x, where(x <= 5, near, _bessel_far(x, 1, "sin", "cos")), -INF)


def spherical_bessel_j0(x: Term) -> Term:
    """sin(x)/x, near 0 by its power series."""
    series = polynomial(x * x, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    return where(x.apply("isinf"), 0, where(abs(x) < 0.5, series, x.apply("sin") / x))


# Modified Bessel functions of the second kind (Cephes k0.c, k1.c) -----------------------------------------------------


def _modified_far(x: Term, order: int) -> Term:
    """eˣ K(x) of x > 2."""
    return chebyshev(8 / x - 2, tables.K1_FAR if order else tables.K0_FAR) / x.apply("sqrt")


def _modified_near(x: Term, order: int) -> Term:
    """K(x) of x ≤ 2."""
    log = (0.5 * x).apply("log")
    if order:
        return log * x.apply("i1") + chebyshev(x * x - 2, tables.K1_NEAR) / x
    return chebyshev(x * x - 2, tables.K0_NEAR) - log * x.apply("i0")


def modified_bessel_k(order: int) -> Callable[[Term], Term]:
    def of(x: Term) -> Term:
        far = (-x).apply("exp") * _modified_far(x, order)
        return _of_positive(x, where(x <= 2, _modified_near(x, order), far), INF)

    return of


def scaled_modified_bessel_k(order: int) -> Callable[[Term], Term]:
    def of(x: Term) -> Term:
        near = _modified_near(x, order) * x.apply("exp")
        return _of_positive(x, where(x <= 2, near, _modified_far(x, order)), INF)

    return of


# Airy's function (Cephes airy.c) --------------------------------------------------------------------------------------


def airy_ai(x: Term) -> Term:
    """Between -2.09 and 2.09 by its power series (DLMF 9.4.1), of which 15 terms are below float64's rounding there."""
    a = abs(x)
    root = a.apply("sqrt")
    zeta, quarter, scale = 2 * a * root / 3, root.apply("sqrt"), 1 / math.sqrt(math.pi)
    w = 1 / zeta
    far = scale * ratio(w, tables.AIRY_FAR) / (2 * quarter * zeta.apply("exp"))
    angle = zeta + 0.25 * math.pi
    sine = angle.apply("sin") * (1 + w * w * ratio(w * w, tables.AIRY_SINE))
    waves = scale / quarter * (sine - angle.apply("cos") * (w * ratio(w * w, tables.AIRY_COSINE)))
    f, g = (polynomial(x * x * x, _airy_series(first)) for first in (0, 1))
    near = 0.355028053887817239260 * f - 0.258819403792806798405 * (x * g)
    value = where(x < -2.09, waves, where(x < 2.09, near, far))
    return where(x.apply("isinf"), NAN, where(x > 103.892, 0, value))


def _airy_series(first: int) -> list[float]:
    """∏ 1/((3j + first - 1)(3j + first)) for j = 1 … k, from k = 15 down."""
    coefficients = [1.0]
    for j in range(1, 16):
        coefficients.insert(0, coefficients[0] / ((3 * j + first - 1) * (3 * j + first)))
    return coefficients


# The normal distribution ----------------------------------------------------------------------------------------------


def erfcx(x: Term) -> Term:
    """exp(x²) erfc(x), below 0 as 2 exp(x²) - erfcx(-x) (DLMF 7.4.2)."""
    a = abs(x)
    positive = chebyshev(2 - 15 / (a + 3.75), tables.ERFCX) / (1 + 2 * a)
    return where(x < 0, 2 * (x * x).apply("exp") - positive, positive)


def ndtri(y: Term) -> Term:
    """The x below which a share y of the normal distribution lies (Cephes ndtri.c)."""
    upper = y > 1 - math.exp(-2)
    tail, middle = where(upper, 1 - y, y), y - 0.5
    centre = (middle + middle * (middle * middle * ratio(middle * middle, tables.NDTRI_CENTRE))) * math.sqrt(2 * math.pi)
    z = (-2 * tail.apply("log")).apply("sqrt")
    correction = 1 / z * where(z < 8, ratio(1 / z, tables.NDTRI_NEAR), ratio(1 / z, tables.NDTRI_FAR))
    outer = z - z.apply("log") / z - correction
    value = where(tail > math.exp(-2), centre, where(upper, outer, -outer))
    value = where(y.equals(0), -INF, where(y.equals(1), INF, value))
    return where((y < 0) | (y > 1), NAN, value)


# Zeta and the derivatives of log Γ ------------------------------------------------------------------------------------

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
              854513 / 138, -236364091 / 2730)  # fmt: skip
"""B₂, B₄, …, B₂₄."""


def _inverse_power(base: Term, x: Term) -> Term:
    """base⁻ˣ; by multiplications where x is a constant, which is whole."""
    if isinstance(x.node, Const):
        return 1 / Term(integer_power(base.node, int(x.node.value)))
    return base.apply("pow", -x)


def _zeta_of_positive(x: Term, q: Term) -> Term:
    """Σ (q + k)⁻ˣ over k ≥ 0: ten terms, and the others by the formula of Euler and Maclaurin (DLMF 25.11.43)."""
    terms = [_inverse_power(q + k, x) for k in range(10)]
    w, last = q + 9, terms[-1]
    rest = last * w / (x - 1) - 0.5 * last
    rising = last * x / w  # times x (x + 1) … (x + 2j - 2) w^(1 - 2j)
    for j, b in enumerate(_BERNOULLI, 1):
        rest = rest + b / math.factorial(2 * j) * rising
        rising = rising * ((x + (2 * j - 1)) / w) * ((x + 2 * j) / w)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total + rest


def _zeta(x: Term, q: Term) -> Term:
    """Below 0 the terms up to the first positive one are those of a series that begins at q rounded up and ends after -q:
    ζ(x, q) = ζ(x, q - ⌊q⌋) ± (ζ(x, ⌈q⌉ - q) - ζ(x, 1 - q)), + where x is even. So no number of terms depends on q."""
    low = q < 0
    first = _zeta_of_positive(x, where(low, q - q.apply("floor"), q))
    mirrored = _zeta_of_positive(x, q.apply("ceil") - q) - _zeta_of_positive(x, 1 - q)
    even = (0.5 * x).whole
    return where(low, first + where(even, mirrored, -mirrored), first)


def zeta(x: Term, q: Term) -> Term:
    """Hurwitz's zeta function as torch has it: infinite at x = 1 and at the poles, NaN of x < 1 and of broken powers of
    negative numbers."""
    value = where((q < 0) & ~x.whole, NAN, _zeta(x, q))
    value = where((q <= 0) & q.whole, INF, value)
    return where(x.equals(1), INF, where(x < 1, NAN, value))


def trigamma(x: Term) -> Term:
    """Up by 6 and then its asymptotic series (DLMF 5.15.8), reflected below 1/2."""
    low = x < 0.5
    y = where(low, 1 - x, x)
    total = x.like(0)
    for _ in range(6):
        total, y = total + 1 / (y * y), y + 1
    w = 1 / (y * y)
    total = total + (1 + 0.5 / y + w * (1 / 6 - w * (1 / 30 - w / 42))) / y
    sine = math.pi / (math.pi * x).apply("sin")
    return where(low, sine * sine - total, total)


def polygamma(n: int) -> Callable[[Term], Term]:
    """The nth derivative of digamma: (-1)ⁿ⁺¹ n! ζ(n + 1, x) for n ≥ 2 (DLMF 5.15.1)."""

    def of(x: Term) -> Term:
        if n < 2:
            return trigamma(x) if n else x.apply("digamma")
        factor = math.factorial(n) if n <= 170 else INF
        return (factor if n % 2 else -factor) * zeta(x.like(n + 1), x)

    return of


# the operators --------------------------------------------------------------------------------------------------------

UNARY: dict[str, Callable[..., Term]] = {
    "special_bessel_j0": bessel_j0,
    "special_bessel_j1": bessel_j1,
    "special_bessel_y0": bessel_y0,
    "special_bessel_y1": bessel_y1,
    "special_spherical_bessel_j0": spherical_bessel_j0,
    "special_modified_bessel_k0": modified_bessel_k(0),
    "special_modified_bessel_k1": modified_bessel_k(1),
    "special_scaled_modified_bessel_k0": scaled_modified_bessel_k(0),
    "special_scaled_modified_bessel_k1": scaled_modified_bessel_k(1),
    "special_airy_ai": airy_ai,
    "special_erfcx": erfcx,
    "special_ndtri": ndtri,
}
BINARY: dict[str, tuple[str, Callable[..., Term]]] = {
    "special_zeta": ("self_scalar other_scalar", zeta),
    **{
        f"special_{'shifted_' * shifted}chebyshev_polynomial_{kind}": ("x_scalar n_scalar", chebyshev_polynomial(kind, shifted))
        for kind in "tuvw"
        for shifted in (False, True)
    },
    "special_hermite_polynomial_h": ("x_scalar n_scalar", hermite_polynomial("hermite_h")),
    "special_hermite_polynomial_he": ("x_scalar n_scalar", hermite_polynomial("hermite_he")),
    "special_laguerre_polynomial_l": ("x_scalar n_scalar", laguerre_polynomial),
    "special_legendre_polynomial_p": ("x_scalar n_scalar", legendre_polynomial),
}
"""Operators of two tensors, with the overloads in which one of them is a number."""

register(Row(f"{name} prims.{name.removeprefix('special_')}", formula(of), TO_FLOAT) for name, of in UNARY.items())
register(
    Row(" ".join([name, *(f"{name}.{scalar}" for scalar in scalars.split())]), formula(of), TO_FLOAT)
    for name, (scalars, of) in BINARY.items()
)


@lowers(*overloads("polygamma"))
def lower_polygamma(builder: Builder, n: int, x: Tensor) -> Tensor:
    return elementwise(builder, formula(polygamma(n)), TO_FLOAT, x)
