"""Epilogues in fewer instructions: a GELU without the sign of its erf, roundings in pairs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytile import options
from polytile.candidates.triton import WORKER, job_of, triton_version
from polytile.codegen.triton.helpers import TEXTS
from polytile.matmul import gemm_kernel
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.operands import EVEN_K
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.runtime.cuda import cubins, workers
from polytile.schedule.facts import Facts
from tests.codegen.test_triton_gemm_prologue import flat, lowered
from tests.codegen.triton_gemm import CHIP, PLAIN, interpreted, small

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

HOPPER = Chip(132, overlaps=True)


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, verify_ir=True):
        yield
    workers.reset()


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def by_hand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b).float()
    return ((torch.erf(y * 0.7071067811865476) + 1) * (0.5 * y)).to(x.dtype)


def another(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b).float()
    return (y * 0.5 * (torch.erf(y) + 1)).to(x.dtype)


def made(function: Callable[..., Tensor], dtype: torch.dtype) -> GemmKernel:
    args = torch.randn(160, 96), torch.randn(144, 96), torch.randn(144)
    program, template = lowered(function, tuple(arg.to(dtype) for arg in args))
    return gemm_kernel.canonicalize(template, program.buffers)[0]


def source(kernel: GemmKernel, chip: Chip) -> str:
    return generate(kernel, small("tile"), Facts(), chip).launches[0].source


@pytest.mark.parametrize(
    ("function", "dtype", "found"),
    [
        (linear_gelu, torch.bfloat16, True), (linear_gelu, torch.float16, True), (by_hand, torch.bfloat16, True),
        (another, torch.bfloat16, False), (linear_gelu, torch.float32, False),
    ],
)  # fmt: skip
def test_a_gelu_of_16_bits_is_found(function: Callable[..., Tensor], dtype: torch.dtype, found: bool) -> None:
    text = source(made(function, dtype), CHIP)
    assert ("pt_gelu(" in text, "erf(" in text) == (found, not found)


def checked(activation: Callable[[Tensor], Tensor], variant: str, reach: float) -> GemmKernel:
    """The kernel of `activation` after a linear layer. Its results for biases from -reach to reach, infinities and NaN are
    compared with those in float64."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return activation(F.linear(x, w, b))

    x, w = torch.randn(4, 96).bfloat16(), torch.randn(144, 96).bfloat16() / 10
    b = torch.linspace(-reach, reach, 144).bfloat16()
    b[:3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    program, template = lowered(function, (x, w, b))
    kernel, args, result = flat(program, template, (x, w, b))
    stored = result.bfloat16()
    interpreted(kernel, small(variant), [stored if arg is result else arg for arg in args])
    exact = activation(((x.double() @ w.double().t()).bfloat16() + b).double())
    assert bool(stored[:, 0].isposinf().all() and stored[:, 1:3].isnan().all())
    torch.testing.assert_close(stored[:, 3:].double(), exact[:, 3:], rtol=1e-2, atol=1e-2)
    return kernel


@pytest.mark.parametrize("variant", PLAIN)
def test_its_values_are_eagers(variant: str) -> None:
    checked(F.gelu, variant, reach=12)


def test_the_formula_is_as_near_as_eagers_in_float32() -> None:
    names: dict[str, Any] = {"tl": torch}
    exec(TEXTS["pt_gelu"].removeprefix("@triton.jit\n"), names)
    x = torch.linspace(-13, 13, 1 << 14)
    got, exact = names["pt_gelu"](x), F.gelu(x.double())
    assert float((got - exact).abs().max()) < 1e-6
    assert float(((got - exact) / exact)[x.abs() < 2].abs().nan_to_num().max()) < 1e-5


SIGMOIDS: dict[str, Callable[[Tensor], Tensor]] = {
    "pt_gelu_by_tanh": lambda y: F.gelu(y, approximate="tanh"), "pt_logistic": F.silu,
}  # fmt: skip


@pytest.mark.parametrize("name", SIGMOIDS)
def test_sigmoids_take_no_branches(name: str, empty_cache: Path) -> None:
    kernel = checked(SIGMOIDS[name], "tile", reach=100)
    assert f" = {name}(" in source(kernel, CHIP)
    config = Config.of(variant="persistent", m=128, n=256, k=64, stages=3, warps=8, group=8)
    facts = Facts(frozenset(kernel.size_names), frozenset(t.name for t in kernel.tensors), holding=frozenset({EVEN_K}))
    [launch] = generate(kernel, config, facts, HOPPER).launches
    order = cubins.Order("product", WORKER, job_of(launch, 90), triton_version())
    assert not cubins.request(order).result().facts.spills


def test_numbers_are_rounded_in_pairs_where_the_device_does() -> None:
    for dtype, name in ((torch.bfloat16, "pt_round_bf16"), (torch.float16, "pt_round_f16")):
        kernel = made(linear_gelu, dtype)
        assert source(kernel, HOPPER).count(f" = {name}(") == 2 and name not in source(kernel, CHIP)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_blocks_with_one_number_a_thread_are_rounded_too(dtype: torch.dtype, empty_cache: Path) -> None:
    kernel = made(linear_gelu, dtype)
    for more in ({"m": 16, "n": 16, "warps": 8}, {"m": 16, "n": 32, "warps": 1}):
        for launch in generate(kernel, small("tile", **more), Facts(), HOPPER).launches:
            order = cubins.Order("product", WORKER, job_of(launch, 90), triton_version())
            assert not cubins.request(order).result().facts.spills
