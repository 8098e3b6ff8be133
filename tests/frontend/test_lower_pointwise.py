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
from lowering import check, library_calls, lower
from values import ALL, FLOATS, INTEGERS, numbers

aten = torch.ops.aten

OF_ANYTHING = """abs neg sign sgn ceil floor trunc round frac relu positive isnan isinf isposinf isneginf isfinite
    signbit logical_not square sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10
    log1p sqrt rsqrt reciprocal erf erfc erfinv sigmoid lgamma digamma i0 sinc deg2rad angle nan_to_num""".split()
OF_FLOATS = {
    "relu6": F.relu6, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "mish": F.mish, "softplus": F.softplus, "elu": F.elu, "selu": F.selu, "celu": F.celu, "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "tanhshrink": F.tanhshrink, "logsigmoid": F.logsigmoid, "softsign": F.softsign,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0), "special.i0e": torch.special.i0e, "special.i1": torch.special.i1,
    "special.i1e": torch.special.i1e, "entr": torch.special.entr, "round 2": lambda x: torch.round(x, decimals=2),
    "round -1": lambda x: torch.round(x, decimals=-1), "logit": lambda x: torch.logit(x, 1e-3),
    "polar angle": lambda x: torch.atan2(x, x + 1),
}  # fmt: skip
# Eager computes these of bfloat16 and float16 in several roundings; here there is one.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-6, torch.float64: 1e-12}


def compare(fn: Callable[..., Any], *args: Any) -> None:
    """Against eager where eager has the operator for these types at all."""
    try:
        expected = fn(*args)
    except (RuntimeError, TypeError, NotImplementedError):
        pytest.skip("eager has no such operator for these types")
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    floats = [a.dtype for a in args if isinstance(a, torch.Tensor) and a.dtype in (torch.bfloat16, torch.float16)]
    tolerance = max([tolerance, *[TOLERANCE[d] for d in floats]]) if expected.dtype.is_floating_point else 0.0
    check(fn, *args, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", OF_ANYTHING)
def test_unary(name: str, dtype: torch.dtype) -> None:
    compare(getattr(torch, name), numbers(dtype, 4, 5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OF_FLOATS)
def test_activations(name: str, dtype: torch.dtype) -> None:
    x = numbers(dtype, 4, 5)
    if name == "gelu":  # eager's vectors make NaN of the infinities
        x = torch.nan_to_num(x, posinf=9.0, neginf=-9.0)
    if name == "logit":  # its bounds are rounded first to the 16-bit type by eager
        x = x.clamp(0.1, 0.9)
    compare(OF_FLOATS[name], x)


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


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_with_broadcasting(name: str, dtype: torch.dtype) -> None:
    a, b = numbers(dtype, 3, 1, 5), numbers(dtype, 4, 1).flip(0)
    compare(BINARY[name], a, divisor(name, b))


PAIRS = [
    (a, b)
    for a, b in itertools.product((torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool), repeat=2)
    if a != b
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "div", "lt", "maximum", "pow", "where", "logical_or"])
def test_types_are_promoted(name: str, left: torch.dtype, right: torch.dtype) -> None:
    compare(BINARY[name], numbers(left, 3, 4), divisor(name, numbers(right, 4)))


@pytest.mark.parametrize("right", [torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("left", [torch.float32, torch.float16, torch.int32, torch.bool], ids=str)
def test_tensors_without_dimensions_do_not_widen(left: torch.dtype, right: torch.dtype) -> None:
    compare(torch.add, numbers(left, 3, 4), numbers(right, 5)[1])


@pytest.mark.parametrize("scalar", [2, -3, 0, 2.5, True, float("inf")], ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_python_numbers(dtype: torch.dtype, scalar: float) -> None:
    x = numbers(dtype, 7)
    for fn in (
        lambda x: x + scalar,
        lambda x: x * scalar,
        lambda x: scalar - x if x.dtype != torch.bool else x | True,
        lambda x: x > scalar,
        lambda x: x == scalar,
        lambda x: torch.where(x > 1, x, scalar),
    ):
        try:
            fn(x)
        except RuntimeError:
            continue
        compare(fn, x)


@pytest.mark.parametrize("scalar", [300, -1, 2**40 + 1], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32], ids=str)
def test_numbers_that_the_type_does_not_hold_wrap(dtype: torch.dtype, scalar: int) -> None:
    compare(lambda x: (x < scalar) ^ (x == scalar), numbers(dtype, 9))
    compare(lambda x: x + scalar, numbers(dtype, 9))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 7, -1, -2, 0.5, -0.5, 1.5, 2.0, 3.0], ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constant_powers(dtype: torch.dtype, exponent: float) -> None:
    x = numbers(dtype, 15)
    compare(lambda x: x**exponent, x.abs() if dtype == torch.float16 else x)  # eager's half has no root of its own


@pytest.mark.parametrize("base", [1, 2, 3, 2.0, 0.5, -1.5], ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_powers_of_a_constant(dtype: torch.dtype, base: float) -> None:
    compare(lambda x: torch.pow(base, x), numbers(dtype, 15) if dtype.is_floating_point else numbers(dtype, 15) % 5)


@pytest.mark.parametrize("bounds", [(0, None), (None, 2), (-1, 1), (-0.5, 1.5), (2, -2)], ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_clamp(dtype: torch.dtype, bounds: tuple[float | None, float | None]) -> None:
    compare(lambda x: torch.clamp(x, *bounds), numbers(dtype, 15))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", (*INTEGERS, torch.int8, torch.int16, torch.bool), ids=str)
def test_bits(dtype: torch.dtype, name: str) -> None:
    compare(getattr(torch, name), numbers(dtype, 6), numbers(dtype, 6).flip(0))
    compare(torch.bitwise_not, numbers(dtype, 6))


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.int8), ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    x, by = numbers(dtype, 6), torch.tensor([0, 1, 2, 3, 7, 1], dtype=dtype)
    compare(torch.bitwise_left_shift, x, by)
    compare(torch.bitwise_right_shift, x, by)
    compare(lambda x: x << 2, x)


def test_integers_wrap_around() -> None:
    x = torch.tensor([250, 10, 255, 0], dtype=torch.uint8)
    compare(lambda x: (x + 10) * 3 - 1, x)
    compare(lambda x: -x, x)
    compare(lambda x: x * 2**30 * 4, torch.tensor([3, 5], dtype=torch.int32))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(ALL, ALL)), ids=str)
def test_conversions(source: torch.dtype, target: torch.dtype) -> None:
    x = numbers(source, 15)
    if source.is_floating_point and not target.is_floating_point:
        x = torch.nan_to_num(x, nan=0.0, posinf=9.0, neginf=-9.0)
        x = x.abs() if target == torch.uint8 else x
    check(lambda x: x.to(target), x, rtol=0, atol=0)


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


@pytest.mark.parametrize(
    "fn",
    [lambda x: x * 1j, lambda x: torch.gcd(x.long(), x.long()), lambda x: torch.special.erfcx(x)],
    ids=["complex", "gcd", "erfcx"],
)
def test_what_is_not_covered_becomes_a_library_call(fn: Callable[..., Any]) -> None:
    x = torch.randn(5)
    assert library_calls(lower(fn, x))
    check(fn, x, library=True)
