"""Special functions: their formulas give what eager gives, at the points where branches meet and where there is no value too."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, lower, run

NOT_FINITE = [math.inf, -math.inf, math.nan]
EDGES = [0.0, -0.0, 1.0, -1.0, 2.0, -2.09, 2.09, 5.0, -5.0, 0.5, 8.0, 1e-7, -1e-7, 103.0, 104.0, 3e4, *NOT_FINITE]
POLYNOMIALS = [
    *(f"{shifted}chebyshev_polynomial_{kind}" for kind in "tuvw" for shifted in ("", "shifted_")),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
]
UNARY = {
    "bessel_j0": 40, "bessel_j1": 40, "bessel_y0": 40, "bessel_y1": 40, "spherical_bessel_j0": 20, "modified_bessel_k0": 30,
    "modified_bessel_k1": 30, "scaled_modified_bessel_k0": 40, "scaled_modified_bessel_k1": 40, "airy_ai": 12, "erfcx": 5,
    "ndtri": 1.1, "log_ndtr": 20,
}  # fmt: skip
"""Functions of torch.special, and how far from 0 they are tried."""


def points(reach: float, dtype: torch.dtype) -> torch.Tensor:
    edges = torch.tensor([x for x in EDGES if abs(x) <= 6 or not math.isfinite(x) or reach >= 30])
    return torch.cat([torch.linspace(-reach, reach, 301, dtype=torch.float64), edges]).to(dtype)


def generated(fn: Callable[..., Any], *args: torch.Tensor) -> None:
    tolerance = 1e-11 if torch.float64 in (a.dtype for a in args) else 2e-5
    check(fn, *args, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str, dtype: torch.dtype) -> None:
    generated(getattr(torch.special, name), points(UNARY[name], dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool], ids=str)
def test_functions_of_whole_numbers(dtype: torch.dtype) -> None:
    x = torch.arange(-3, 9).to(dtype)
    for name in UNARY:
        generated(getattr(torch.special, name), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str, dtype: torch.dtype) -> None:
    """At, inside and outside of the ends of their interval; of degrees that are negative, broken or none at all."""
    fn = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-1.5, 1.5, 61), torch.tensor([0.0, 1.0, -1.0, 0.5, 3.0, -4.0])]).to(dtype)[:, None]
    degrees = torch.tensor([-3, -0.5, 0, 0.5, 1, 2, 3.7, 5, 6, 7, 8, 9, 12], dtype=dtype)
    generated(fn, x, degrees)
    generated(lambda x: fn(x, 4), x)
    generated(lambda n: fn(0.25, n), degrees)
    if not name.startswith("hermite"):  # whose eager form casts infinity to an integer
        generated(fn, x[:3], torch.tensor([math.nan, -math.inf], dtype=dtype))


def test_hermite_polynomials_end_at_torchs_limit() -> None:
    x, degrees = torch.tensor([0.5, -2.0])[:, None], torch.tensor([1.0, 30, 128, 129, 1000])
    for name in ("hermite_polynomial_h", "hermite_polynomial_he"):
        check(getattr(torch.special, name), x, degrees, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zeta(dtype: torch.dtype) -> None:
    """On both sides of 0, where its sum begins with as many terms as q lies below it, at poles, and without a value."""
    x = torch.tensor([-1, 0.5, 1, 1.25, 2, 3, 5.5, 10, 11, 30, 90], dtype=dtype)[:, None]
    q = torch.cat([torch.linspace(-12.3, 12, 71, dtype=torch.float64), torch.tensor([0, -3, -0.001, 0.001, 50, -50.5, 3e4])])
    generated(torch.special.zeta, x, q.to(dtype))
    generated(lambda q: torch.special.zeta(3, q), q.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6, 20])
def test_derivatives_of_digamma(n: int, dtype: torch.dtype) -> None:
    x = torch.cat([torch.rand(60) * 40 + 0.01, -torch.rand(20) * 9, torch.tensor([0.5, 1, 150])]).to(dtype)
    generated(lambda x: torch.polygamma(n, x), x.abs() + 1 if dtype == torch.int64 else x)


def test_polygamma_differentiates() -> None:
    x = torch.rand(20, dtype=torch.float64) + 0.5
    generated(lambda x: torch.func.grad(lambda y: torch.polygamma(2, y).sum())(x), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_incomplete_gamma(dtype: torch.dtype) -> None:
    """Where the series, the fraction and the expansion meet, at both ends of the range and beyond; torch's own expansion is up to
    3e-10 off."""
    a = torch.tensor([0, 1e-12, 0.3, 1, 1.5, 19.9, 20, 150, 199.9, 200, 250, 1e4, 1e10, math.inf, -1, math.nan], dtype=dtype)
    shares = torch.tensor([0, 1e-8, 0.3, 0.69, 0.71, 0.99, 1, 1.01, 1.29, 1.31, 2, 20], dtype=dtype)
    others = torch.tensor([0.4, 1.09, 1.11, 3, 0, -1, math.inf, math.nan], dtype=dtype)
    x = torch.cat([a[:, None] * shares, others.expand(len(a), -1)], 1)
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 1e-2}[dtype]
    check(lambda a, x: (torch.igamma(a, x), torch.igammac(a, x)), a[:, None], x, rtol=tolerance, atol=tolerance)


def test_incomplete_gamma_to_the_last_digits() -> None:
    """The digits are mpmath's. Where a is small torch loses them: it adds 1 to it first."""
    known = {
        (1e-12, 0.9): (0.9999999999997398, 2.6018393932624547e-13), (0.5, 30.0): (0.9999999999999906, 9.485737571073848e-15),
        (20.0, 21.0): (0.6157372277356579, 0.38426277226434213), (150.0, 230.0): (0.9999999925355568, 7.464443172127586e-09),
        (250.0, 320.0): (0.9999785474668728, 2.1452533127201366e-05), (1000.0, 1290.0): (1.0, 1.8894810311347838e-17),
    }  # fmt: skip
    a, x = torch.tensor(list(known), dtype=torch.float64).unbind(1)
    found = run(lower(lambda a, x: (torch.igamma(a, x), torch.igammac(a, x)), a, x), [a, x])
    torch.testing.assert_close(torch.stack(found, 1), torch.tensor(list(known.values()), dtype=torch.float64), rtol=1e-12, atol=0)


def test_incomplete_gamma_differentiates() -> None:
    a, x = torch.rand(20, dtype=torch.float64) * 5 + 0.1, torch.rand(20, dtype=torch.float64) * 9
    generated(lambda a, x: torch.func.grad(lambda y: torch.igamma(a, y).sum())(x), a, x)
