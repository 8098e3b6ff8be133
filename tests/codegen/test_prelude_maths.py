"""The C++ prelude's functions of floating-point numbers: accuracy and edge cases.

References are numpy in float64 or long double, or torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.codegen.prelude import BINARY, TARGETS, X86, Array, call, float_samples, named

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
Function = Callable[[Array], Array]

UNARY = """\
#define FN(f) extern "C" void f##_TT(const TT* x, TT* y, long n) {                         \\
  long i = 0;                                                                                \\
  for (; i + L <= n; i += L) store(y + i, f(load<TT, L>(x + i)));                            \\
  if (i < n) store_n(y + i, f(load_n<TT, L>(x + i, n - i)), n - i);                          \\
}
"""


def by_torch(f: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    return lambda x: f(torch.from_numpy(x.astype(np.float64))).numpy()


# function: (reference, most ulp for float, most ulp for double; None: compared by torch's own accuracy instead)
MATHS: dict[str, tuple[Function, float, float | None]] = {
    "exp": (np.exp, 1, 1.5), "exp2": (np.exp2, 1, 1.5), "expm1": (np.expm1, 2, 2), "log": (np.log, 1.5, 1.5),
    "log2": (np.log2, 2.5, 2.5), "log10": (np.log10, 3, 3), "log1p": (np.log1p, 1.5, 1.5), "sin": (np.sin, 2, 2),
    "cos": (np.cos, 2, 2), "tan": (np.tan, 4, 4), "asin": (np.arcsin, 3, 1), "acos": (np.arccos, 2, 1),
    "atan": (np.arctan, 2, 1), "sinh": (np.sinh, 3, 3), "cosh": (np.cosh, 2, 2), "tanh": (np.tanh, 3, 3),
    "asinh": (np.arcsinh, 3, 3), "acosh": (np.arccosh, 3, 3), "atanh": (np.arctanh, 3, 3),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3, 3), "sqrt": (np.sqrt, 0.5, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5), "reciprocal": (lambda x: 1 / x, 0.5, 0.5), "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0), "trunc": (np.trunc, 0, 0), "round": (np.rint, 0, 0), "abs": (np.abs, 0, 0),
    "erf": (by_torch(torch.erf), 2, None), "erfc": (by_torch(torch.erfc), 1, None),
    "erfinv": (by_torch(torch.erfinv), 4, None), "lgamma": (by_torch(torch.lgamma), 2, None),
    "digamma": (by_torch(torch.digamma), 2, None),
}  # fmt: skip
RARE = ("lgamma", "digamma")  # one TU of their own: slow references, fewer samples


def maths_source(names: list[str], dtype: str) -> str:
    return UNARY.replace("TT", dtype) + "".join(f"FN({n})\n" for n in names)


def ulps(y: Array, want: Array, bits: int, lowest: int) -> Array:
    """Distance in units of the last place of `want`'s binade; 0 where both are the same infinity or NaN."""
    with np.errstate(all="ignore"):
        rounded = want.astype(y.dtype)
        equal = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
        unit = np.exp2(np.maximum(np.floor(np.log2(np.abs(want))), lowest) - bits)
        distance = np.abs(y.astype(want.dtype) - want) / unit
    return np.where(equal, 0, np.where(np.isfinite(y) & np.isfinite(rounded), distance, np.inf)).astype(np.float64)


def double_samples(count: int) -> Array:
    draws = np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64).view(np.float64)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 5e-324, 2.3e-308, 709.78, 709.79, 710.4, -745.1, -745.2]
    edges += [1024, -1074, 1e6, 1.7e308]
    spans = [(-20, 20), (-1.01, 1.01), (0.5, 2), (-746, 746)]
    return np.concatenate([draws, *(np.linspace(a, b, 20001) for a, b in spans), np.array(edges)])


def check(name: str, x: Array, y: Array, want: Array, most: float, bits: int, lowest: int) -> None:
    distance = ulps(y, want, bits, lowest)
    worst = int(np.argmax(distance))
    message = f"{name}({x[worst]!r}) is {y[worst]!r}, wanted {want[worst]!r}: {distance[worst]:.2f} ulp, allowed {most}"
    assert distance[worst] <= most, message
    signs = (want == 0) & (y == 0) & (np.signbit(want) != np.signbit(y))
    assert not signs.any(), f"{name}({x[signs][0]!r}) has the wrong sign of zero"


COMMON = [n for n in MATHS if n not in RARE]


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_float_functions_stay_within_their_ulps_on_every_instruction_set(build: Any, march: str, lanes: int) -> None:
    x = float_samples(10007 if march == "native" else 100003)
    library = build(maths_source(COMMON, "float"), march, lanes)
    for name in COMMON:
        y = np.empty_like(x)
        call(library, f"{name}_float", x, y)
        with np.errstate(all="ignore"):
            wide = x.astype(np.longdouble if name in ("sin", "cos", "tan") else np.float64)
            want = MATHS[name][0](wide).astype(np.float64)
        slack = (
            0.2 if march != "native" and MATHS[name][1] else 0
        )  # no fused multiply-add, or another order of roundings
        check(name, x, y, want, MATHS[name][1] + slack, 23, -126)


@pytest.mark.parametrize(("march", "lanes"), [("native", 8), *([("x86-64", 2)] if X86 else [])])
def test_double_functions_stay_within_their_ulps(build: Any, march: str, lanes: int) -> None:
    names = [n for n in COMMON if MATHS[n][2] is not None]
    x = double_samples(30_000)
    library = build(maths_source(names, "double"), march, lanes)
    for name in names:
        y = np.empty_like(x)
        call(library, f"{name}_double", x, y)
        with np.errstate(all="ignore"):
            want = MATHS[name][0](x.astype(np.longdouble))
        check(name, x, y, want, (MATHS[name][2] or 0) + 0.1, 52, -1022)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_rare_functions_agree_with_torch(build: Any, dtype: str) -> None:
    names = [n for n in MATHS if n in RARE or (dtype == "double" and MATHS[n][2] is None)]
    kind = np.float32 if dtype == "float" else np.float64
    dense = [np.linspace(-30, 30, 6007), np.linspace(-1, 1, 4001), np.geomspace(1e-30, 1e30, 3001)]
    x = np.concatenate([*dense, [np.inf, -np.inf, np.nan, 0.0, -0.0, 1, 2, -1, -2]]).astype(kind)
    library = build(maths_source(names, dtype), "native", 8)
    for name in names:
        y = np.empty_like(x)
        call(library, f"{name}_{dtype}", x, y)
        with np.errstate(all="ignore"):
            want = MATHS[name][0](x).astype(kind)
        relative, absolute = (3e-7, 3e-10) if dtype == "float" else (2e-13, 2e-13)
        got, wanted = torch.from_numpy(y), torch.from_numpy(want)
        torch.testing.assert_close(got, wanted, rtol=relative, atol=absolute, equal_nan=True, msg=partial(named, name))


def test_results_do_not_depend_on_the_lane_count(build: Any) -> None:
    names = ["exp", "log", "log1p", "tanh", "erf", "sin", "erfc", "round", "sigmoid"]
    x = float_samples(2_000_003)
    rows: dict[str, Array] = {}
    for lanes in (1, 2, 4, 16, 64):
        library = build(maths_source(names, "float"), "native", lanes)
        for name in names:
            y = np.empty_like(x)
            call(library, f"{name}_float", x, y)
            np.testing.assert_array_equal(y, rows.setdefault(name, y), err_msg=f"{name} with {lanes} lanes")


def test_functions_take_plain_numbers(build: Any) -> None:
    body = "y[0] = exp(x[0]); y[1] = rsqrt(float(x[0])); y[2] = maximum(x[0], 5.0);"
    library = build(f'extern "C" void go(const double* x, double* y, long n) {{ {body} }}')
    y = np.zeros(3)
    call(library, "go", np.array([4.0]), y)
    np.testing.assert_allclose(y, [np.exp(4), 0.5, 5])


PAIRS = "pow atan2 hypot copysign fmod remainder floordiv truncdiv minimum maximum".split()


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_functions_of_two_floats_agree_with_torch_edges_included(build: Any, march: str, lanes: int) -> None:
    edges = np.array(
        [0.0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-45, 1e38, 16777217, -7, 7], np.float32
    )
    rng = np.random.default_rng(3)
    draws = [[rng.uniform(-9, 9, 20000), rng.integers(-40, 40, 5000)] for _ in range(2)]
    a, b = (
        np.concatenate([e.ravel(), *d]).astype(np.float32)
        for e, d in zip(np.meshgrid(edges, edges), draws, strict=True)
    )
    library = build(BINARY.replace("TT", "float") + "".join(f"FN2({n})\n" for n in PAIRS), march, lanes)
    names = {"floordiv": "floor_divide", "truncdiv": "div"}
    with np.errstate(all="ignore"):
        huge = np.abs(a / np.where(b == 0, 1, b)) > 2**24  # where torch's own vectors give NaN for a remainder
    for name in PAIRS:
        y = np.empty_like(a)
        call(library, f"{name}_float", a, b, y)
        rounded = name in ("pow", "atan2", "hypot")
        x, z = (torch.from_numpy(v.astype(np.float64) if rounded else v) for v in (a, b))
        extra = {"rounding_mode": "trunc"} if name == "truncdiv" else {}
        want = getattr(torch, names.get(name, name))(x, z, **extra).numpy()
        distance = np.where(huge & (name in ("remainder", "fmod")), 0, ulps(y, want.astype(np.float64), 23, -126))
        worst = int(np.argmax(distance))
        message = f"{name}({a[worst]!r}, {b[worst]!r}) is {y[worst]!r}, wanted {want[worst]!r}"
        assert distance[worst] <= (2 if rounded else 0), message
