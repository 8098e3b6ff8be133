"""Pointwise operators: the generated loops compute what eager computes, in the types that eager's promotion gives."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, check_each, library_calls, lower
from values import ALL, FLOATS, INTEGERS, numbers

import polytile

OF_ANYTHING = """abs neg sign sgn ceil floor trunc round frac relu positive isnan isinf isposinf isneginf isfinite
    signbit logical_not square sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10
    log1p sqrt rsqrt reciprocal erf erfc erfinv sigmoid lgamma digamma sinc deg2rad angle nan_to_num""".split()
OF_FLOATS = {
    "relu6": F.relu6, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "mish": F.mish, "softplus": F.softplus, "elu": F.elu, "selu": F.selu, "celu": F.celu, "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "tanhshrink": F.tanhshrink, "logsigmoid": F.logsigmoid, "softsign": F.softsign,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0), "entr": torch.special.entr, "round 2": lambda x: torch.round(x, decimals=2),
    "round -1": lambda x: torch.round(x, decimals=-1), "logit": lambda x: torch.logit(x, 1e-3),
    "polar angle": lambda x: torch.atan2(x, x + 1),
}  # fmt: skip
# In the 16-bit types eager rounds where these are taken apart; here a result is rounded once.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-6, torch.float64: 1e-12}


def compare(*functions: Callable[..., Any] | dict[str, Callable[..., Any]], args: tuple[Any, ...]) -> None:
    """All the functions against eager, as far as eager has them for these types."""
    named: dict[str, Callable[..., Any]] = {}
    for k, fn in enumerate(functions):
        named.update(fn if isinstance(fn, dict) else {f"function {k}": fn})
    tolerances = dict(TOLERANCES)
    for a in args:  # wider results of 16-bit arguments
        if a.dtype in (torch.bfloat16, torch.float16):
            tolerances |= {d: max(t, TOLERANCES[a.dtype]) for d, t in tolerances.items()}
    check_each(named, *args, tolerances=tolerances)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_unary(dtype: torch.dtype) -> None:
    compare({name: getattr(torch, name) for name in OF_ANYTHING}, args=(numbers(dtype, 4, 5),))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(dtype: torch.dtype) -> None:
    others = {name: fn for name, fn in OF_FLOATS.items() if name not in ("gelu", "logit")}
    compare(others, args=(numbers(dtype, 4, 5),))
    # Eager's vectors make NaN of gelu of infinity, and it rounds the bounds of logit to the 16-bit type first.
    inside = torch.nan_to_num(numbers(dtype, 4, 5)).clamp(-9, 9)
    compare({"gelu": OF_FLOATS["gelu"], "logit": lambda x: OF_FLOATS["logit"](x.clamp(0.1, 0.9))}, args=(inside,))


BINARY: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in """add sub mul div maximum minimum fmax fmin remainder fmod floor_divide pow atan2 copysign eq ne lt
        le gt ge logical_and logical_or logical_xor""".split()
    },
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "add alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "where": lambda a, b: torch.where(a > 1, a, b),
    "clamp": lambda a, b: torch.clamp(a, b, b + 1),
}
DIVISIONS = ("div trunc", "div floor", "floor_divide", "remainder", "fmod")


def divisor(name: str, b: torch.Tensor) -> torch.Tensor:
    """Integers are not divided by 0, nor raised to negative powers: eager raises an error."""
    if b.dtype.is_floating_point or b.dtype == torch.bool:
        return b
    return torch.where(b == 0, 3, b).to(b.dtype) if name in DIVISIONS else b.abs() % 4 if name == "pow" else b


def with_divisor(name: str) -> Callable[..., Any]:
    return lambda a, b: BINARY[name](a, divisor(name, b))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_binary_with_broadcasting(dtype: torch.dtype) -> None:
    compare({name: with_divisor(name) for name in BINARY}, args=(numbers(dtype, 3, 1, 5), numbers(dtype, 4, 1).flip(0)))


PAIRS = [
    (a, b)
    for a, b in itertools.product((torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool), repeat=2)
    if a != b
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_types_are_promoted(left: torch.dtype, right: torch.dtype) -> None:
    names = ("add", "mul", "div", "lt", "maximum", "pow", "where", "logical_or")
    compare({name: with_divisor(name) for name in names}, args=(numbers(left, 3, 4), numbers(right, 4)))


@pytest.mark.parametrize("right", [torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("left", [torch.float32, torch.float16, torch.int32, torch.bool], ids=str)
def test_tensors_without_dimensions_do_not_widen(left: torch.dtype, right: torch.dtype) -> None:
    compare(torch.add, torch.mul, torch.gt, args=(numbers(left, 3, 4), numbers(right, 5)[1]))


def with_number(n: float) -> dict[str, Callable[..., Any]]:
    return {
        f"x + {n}": lambda x: x + n,
        f"x * {n}": lambda x: x * n,
        f"{n} - x": lambda x: n - x,
        f"x > {n}": lambda x: x > n,
        f"x == {n}": lambda x: x == n,
        f"where(x > 1, x, {n})": lambda x: torch.where(x > 1, x, n),
    }


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_python_numbers(dtype: torch.dtype) -> None:
    compare(*[with_number(n) for n in (2, -3, 0, 2.5, True, float("inf"))], args=(numbers(dtype, 7),))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32], ids=str)
def test_numbers_that_the_type_does_not_hold_wrap(dtype: torch.dtype) -> None:
    compare(*[with_number(n) for n in (300, -1, 2**40 + 1)], args=(numbers(dtype, 9),))


def power_of(exponent: float) -> dict[str, Callable[..., Any]]:
    return {f"x ** {exponent}": lambda x: x**exponent}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constant_powers(dtype: torch.dtype) -> None:
    x = numbers(dtype, 15)
    exponents = (0, 1, 2, 3, 4, 7, -1, -2, 0.5, -0.5, 1.5, 2.0, 3.0)
    compare(*map(power_of, exponents), args=(x,))


def power_to(base: float) -> dict[str, Callable[..., Any]]:
    return {f"{base} ** x": lambda x: torch.pow(base, x)}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_powers_of_a_constant(dtype: torch.dtype) -> None:
    x = numbers(dtype, 15)
    x = x if dtype.is_floating_point or dtype == torch.bool else x % 5
    compare(*map(power_to, (1, 2, 3, 2.0, 0.5, -1.5)), args=(x,))


def clamp_to(low: float | None, high: float | None) -> dict[str, Callable[..., Any]]:
    return {f"clamp to {low}, {high}": lambda x: torch.clamp(x, low, high)}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_clamp(dtype: torch.dtype) -> None:
    bounds = [(0, None), (None, 2), (-1, 1), (-0.5, 1.5), (2, -2)]
    compare(*[clamp_to(*b) for b in bounds], args=(numbers(dtype, 15),))


def test_clamp_to_what_the_type_does_not_hold() -> None:
    """PyTorch 2.15 and newer hold nothing back there; others wrap around."""
    compare(*[clamp_to(*b) for b in ((-3, None), (-1, 7))], args=(numbers(torch.uint8, 15),))


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.int8, torch.int16, torch.bool), ids=str)
def test_bits(dtype: torch.dtype) -> None:
    names = ("bitwise_and", "bitwise_or", "bitwise_xor")
    compare({name: getattr(torch, name) for name in names}, args=(numbers(dtype, 6), numbers(dtype, 6).flip(0)))
    compare(torch.bitwise_not, args=(numbers(dtype, 6),))


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.int8), ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    x, by = numbers(dtype, 6), torch.tensor([0, 1, 2, 3, 7, 1], dtype=dtype)
    compare(torch.bitwise_left_shift, torch.bitwise_right_shift, lambda x, _: x << 2, args=(x, by))


def test_integers_wrap_around() -> None:
    x = torch.tensor([250, 10, 255, 0], dtype=torch.uint8)
    compare(lambda x: (x + 10) * 3 - 1, lambda x: -x, args=(x,))
    compare(lambda x: x * 2**30 * 4, args=(torch.tensor([3, 5], dtype=torch.int32),))


def converted_to(dtype: torch.dtype) -> dict[str, Callable[..., Any]]:
    return {f"to {dtype}": lambda x: x.to(dtype)}


@pytest.mark.parametrize("source", ALL, ids=str)
def test_conversions(source: torch.dtype) -> None:
    x = numbers(source, 15)
    to_floats, to_integers = ([converted_to(d) for d in group] for group in (FLOATS, (*INTEGERS, torch.bool)))
    check_each({k: v for group in to_floats for k, v in group.items()}, x)
    if source.is_floating_point:  # what does not fit is undefined
        x = torch.nan_to_num(x, nan=0.0, posinf=9.0, neginf=9.0).abs()
    check_each({k: v for group in to_integers for k, v in group.items()}, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_explicit_conversion_rounds_and_arithmetic_does_not(dtype: torch.dtype) -> None:
    x = torch.randn(64)
    check(lambda x: x.to(dtype).to(torch.float32) * 3, x, rtol=0, atol=0)
    program = lower(lambda x: x * x + x, torch.randn(8).to(dtype))
    assert "round_" not in str([store.value for op in program.operations for store in op.stores])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1)], ids=str)
def test_empty_and_single_elements(shape: tuple[int, ...]) -> None:
    check(lambda x: (x + 1).sin() * 2 > x, numbers(torch.float32, *shape, special=False))


def test_symbolic_numbers() -> None:
    x = torch.randn(4, 6)
    check(lambda x: x * x.shape[1] - x.shape[0], x)
    check(lambda x: x / (x.shape[0] ** 0.5), x)
    check(lambda x: x * (1.0 / x.shape[1]) + x.shape[0] / 3, x)


def test_copies_keep_eager_strides() -> None:
    x = torch.randn(2, 3, 4, 5)
    check(lambda x: x.permute(0, 2, 3, 1) + 1, x)
    check(lambda x: x.contiguous(memory_format=torch.channels_last) * 2, x)
    check(lambda x: x.t().clone(), torch.randn(3, 4))
    check(lambda x: x.t().to(torch.float64), torch.randn(3, 4))


def test_masks_and_fills() -> None:
    x, mask = torch.randn(4, 5), torch.rand(4, 1) > 0.5
    check(lambda x, m: x.masked_fill(m, -float("inf")), x, mask)
    check(lambda x, m: x.masked_fill(m, torch.tensor(2.0)), x, mask)
    check(lambda x, m: torch.where(m, x, 0.0), x, mask)
    check(lambda x, m: torch.where(m, 1, 2), x, mask)


def test_what_is_not_covered_becomes_a_library_call() -> None:
    x = torch.randn(5)
    assert library_calls(lower(lambda x: x * 1j, x))
    check(lambda x: x * 1j, x, library=True)


def test_rare_functions_are_library_calls_with_eagers_results() -> None:
    x, n = torch.rand(20, dtype=torch.float64) * 4, torch.randint(1, 40, (20,))
    functions = {
        "frexp": lambda x, n: torch.frexp(x), "ldexp": torch.ldexp, "polygamma": lambda x, n: torch.polygamma(2, x),
        "igamma": lambda x, n: torch.igamma(n.double(), x), "gcd": lambda x, n: (torch.gcd(n, n[0]), torch.lcm(n, n[1])),
        "nextafter": lambda x, n: torch.nextafter(x, n.double()), "zeta": lambda x, n: torch.special.zeta(x + 1, 2.0),
        "i0e": lambda x, n: torch.special.i0e(x) * 2, "chebyshev": lambda x, n: torch.special.chebyshev_polynomial_t(x, n),
        "log_ndtr": lambda x, n: torch.special.log_ndtr(x), "bessel": lambda x, n: torch.special.bessel_j0(n),
    }  # fmt: skip
    for name, fn in functions.items():
        assert library_calls(lower(fn, x, n)), name
        check(fn, x, n, library=True)
    check(lambda x: torch.func.grad(lambda y: torch.digamma(y).sum())(x), x + 0.5, library=True)


UPDATES: dict[str, Callable[..., torch.Tensor]] = {
    "addcmul": lambda x, y, z: x.clone().addcmul_(y, z, value=0.3),
    "addcdiv": lambda x, y, z: x.clone().addcdiv_(y, z, value=-0.3),
    "add of a factor in memory": lambda x, y, z: x.clone().add_(y, alpha=z.sum()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_in_place_with_a_factor_are_one_loop(name: str, dtype: torch.dtype) -> None:
    """Dynamo of torch 2.13 makes a fused multiply and add of them."""
    torch._dynamo.reset()
    call = torch.compile(UPDATES[name], backend="polytile", dynamic=True)
    with torch.no_grad():
        for shape in ((33, 65), (0, 5), (1, 1), (8, 16)):
            x, y, z = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.rand(shape).to(dtype) + 0.5
            got, exact = call(x, y, z), UPDATES[name](x.double(), y.double(), z.double())
            off, eager = ((r.double() - exact).abs() for r in (got, UPDATES[name](x, y, z)))
            assert got.dtype == dtype
            assert (off <= 4 * eager.amax() + 1e-6 * exact.abs().amax() if off.numel() else off == 0).all()
        if "memory" not in name:
            assert {row.how for row in polytile.explain(call, x, y, z).operators} <= {"generated", "view"}


def test_an_update_of_integers_is_eagers() -> None:
    torch._dynamo.reset()
    i, j, k = (torch.randint(-9, 9, (5, 7)) for _ in range(3))
    call = torch.compile(lambda i, j, k: i.clone().addcmul_(j, k, value=2), backend="polytile", dynamic=True)
    assert torch.equal(call(i, j, k), torch.addcmul(i, j, k, value=2))
