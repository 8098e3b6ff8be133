"""Compiled functions with products, on generated Triton kernels run by the interpreter: results against eager."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

import polytile
from polytile.matmul.triton.schedules import SCHEDULES

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

OPTIONS = {"interpret": True, "persist": False, "sources": "triton", "tune": "off"}
"""Triton's kernels alone, chosen by the prior: the interpreter's times mean nothing."""
FP8 = torch.float8_e4m3fn


def test_a_config_of_the_exhaustive_space_alone_runs_and_is_right() -> None:
    forced = "tile 16x32x64 s1 w2"
    given = {**OPTIONS, "configs": "exhaustive", "force": f"*={forced}"}
    x, y = half(40, 70), half(70, 24)
    run = polytile.compile(torch.matmul, options=given)
    torch.testing.assert_close(run(x, y).double(), x.double() @ y.double(), rtol=2e-2, atol=2e-2)
    assert forced in str(polytile.explain(run, x, y))


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-10, 10, shape, dtype=torch.int8)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x, w, b)) + 1


def scaled_sum(c: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.addmm(c, x, y, beta=0.5, alpha=2)


def batches(c: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.baddbmm(c, x, y.transpose(1, 2))


def two_results(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x @ y
    return z, torch.nn.functional.gelu(z)


def dequantised(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (torch._int_mm(x, w.t()).float() * s).bfloat16()


def mixed(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (x @ w.t().to(x.dtype)) * s


def scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def scaled_by_hand(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What eager gives for `scaled`; not every version of PyTorch takes scales by rows on a CPU."""
    return (x.float() @ w.float().t() * a * b).bfloat16()


EXPECTED = {"fp8": scaled_by_hand, "fp8 by rows": scaled_by_hand}
Make = Callable[[int, int, int], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "linear": (linear, lambda m, n, k: (torch.randn(m, k), torch.randn(n, k), torch.randn(n))),
    "linear bf16": (linear, lambda m, n, k: (half(m, k), half(n, k), half(n))),
    "addmm": (scaled_sum, lambda m, n, k: (torch.randn(n), torch.randn(m, k), torch.randn(k, n))),
    "addmm of columns": (scaled_sum, lambda m, n, k: (torch.randn(m, 1), torch.randn(k, m).t(), torch.randn(n, k).t())),
    "baddbmm": (batches, lambda m, n, k: (torch.randn(3, m, n), torch.randn(3, m, k), torch.randn(3, n, k))),
    "two results": (two_results, lambda m, n, k: (half(m, k), half(k, n))),
    "int8": (dequantised, lambda m, n, k: (int8(m, k), int8(n, k), torch.rand(n))),
    "mixed": (mixed, lambda m, n, k: (half(m, k), int8(n, k), half(n))),
    "mixed f16": (mixed, lambda m, n, k: (torch.randn(m, k).half(), int8(n, k), torch.rand(n).half())),
    "fp8": (scaled, lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.tensor(0.5), torch.tensor(2.0))),
    "fp8 by rows": (scaled, lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.rand(m, 1), torch.rand(1, n))),
}


@pytest.mark.parametrize("name", CASES)
def test_products_match_eager_at_every_size_of_one_compile(name: str) -> None:
    function, make = CASES[name]
    compiled = torch.compile(function, backend="polytile", dynamic=True, options=OPTIONS)
    for m, n, k in ((33, 16, 48), (64, 64, 64), (2, 48, 32)):
        args = make(m, n, k)
        expected, got = EXPECTED.get(name, function)(*args), compiled(*args)
        assert [r.dtype for r in flat(got)] == [r.dtype for r in flat(expected)]
        for mine, eager in zip(flat(got), flat(expected), strict=True):
            torch.testing.assert_close(mine, eager, rtol=3e-2, atol=3e-1) if eager.itemsize == 2 else (
                torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
            )
    (program,) = polytile.compiler.programs.compiled_programs()[-1:]
    (kernel,) = program.multikernels
    assert all(d.candidate.split()[0] in SCHEDULES for d in kernel.decisions)


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def test_nothing_to_multiply() -> None:
    compiled = torch.compile(linear, backend="polytile", dynamic=True, options=OPTIONS)
    for m, n, k in ((5, 6, 7), (0, 6, 7), (5, 6, 0), (5, 0, 7)):
        args = (torch.randn(m, k), torch.randn(n, k), torch.randn(n))
        torch.testing.assert_close(compiled(*args), linear(*args))


def test_types_without_a_generator_are_the_library_s() -> None:
    compiled = torch.compile(lambda x, y: x @ y, backend="polytile", dynamic=True, options=OPTIONS)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(6, 7, dtype=torch.float64)
    torch.testing.assert_close(compiled(x, y), x @ y)


def times(x: torch.Tensor, y: torch.Tensor, by: int) -> torch.Tensor:
    return torch.relu(x @ y) * by


def of_heads(x: torch.Tensor, y: torch.Tensor, size: int) -> torch.Tensor:
    """The sizes of the operands, of which one is computed, depend on the number."""
    q, k = (each.unflatten(-1, (48 // size, size)).transpose(0, 1) for each in (x, y))
    return torch.relu(q @ torch.sin(k).transpose(1, 2)) * size**-0.5


@pytest.mark.parametrize(("function", "numbers"), [(times, (3, -2, 0)), (of_heads, (16, 8, 24))])
def test_epilogues_and_operands_depend_on_numbers_of_any_sign(
    function: Callable[..., torch.Tensor], numbers: tuple[int, ...]
) -> None:
    compiled = torch.compile(function, backend="polytile", dynamic=True, options={**OPTIONS, "on_failure": "raise"})
    for number in numbers:
        x, y = torch.randn(40, 48), torch.randn(48, 48)
        torch.testing.assert_close(compiled(x, y, number), function(x, y, number), rtol=1e-4, atol=1e-4)
