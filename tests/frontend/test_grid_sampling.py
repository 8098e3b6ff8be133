"""Sampling images at positions that are data, on the CPU: right for each interpolation and padding, at and beyond the corners."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from tests.behaviour.helpers import compiled

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
WAYS = [
    *((2, mode, padding, corners) for mode, padding, corners in itertools.product(MODES, PADDINGS, (False, True))),
    (3, "bilinear", "zeros", False),
    (3, "nearest", "reflection", True),
]


def positions(batch: int, *sizes: int) -> Tensor:
    """In and around the image, some far away; none where `nearest` would decide by the last bit."""
    found = torch.rand(batch, *sizes, len(sizes)) * 3 - 1.5
    found.view(-1)[::7] *= 20
    return found


@pytest.mark.parametrize(("rank", "mode", "padding", "corners"), WAYS)
def test_results_are_those_of_eager(rank: int, mode: str, padding: str, corners: bool) -> None:
    def function(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, corners)

    call = compiled(function, force="plain t1")
    for extents, result in (((5, 7, 4), (6, 3, 5)), ((9, 2, 6), (2, 17, 3)), ((1, 3, 1), (4, 2, 2))):
        x, grid = torch.randn(2, 3, *extents[:rank]), positions(2, *result[:rank])
        got, want = call(x, grid), function(x, grid)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_positions_that_are_no_numbers(mode: str, padding: str) -> None:
    def function(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=False)

    call = compiled(function, force="plain t1")
    grid = positions(1, 4, 5)
    grid.view(-1)[:4] = torch.tensor([float("nan"), 0.1, float("inf"), -float("inf")])
    if padding != "reflection":  # eager's own reflection is rounded away there
        grid.view(-1)[4:6] = torch.tensor([1e30, -1e30])
    x = torch.randn(1, 2, 5, 6)
    torch.testing.assert_close(call(x, grid), function(x, grid), equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize(
    ("rank", "mode", "padding", "corners"),
    [
        (2, "bilinear", "zeros", False),
        (2, "nearest", "reflection", True),
        (2, "bicubic", "border", False),
        (3, "bilinear", "zeros", True),
    ],
)
def test_kernels_of_a_gpu(rank: int, mode: str, padding: str, corners: bool) -> None:
    def function(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, corners)

    call = compiled(function, interpret=True, persist=False, tune="off")
    for extents, result in (((5, 7, 4), (6, 3, 5)), ((2, 3, 2), (4, 2, 2))):
        x, grid = torch.randn(2, 3, *extents[:rank]), positions(2, *result[:rank])
        torch.testing.assert_close(call(x, grid), function(x, grid), rtol=1e-4, atol=1e-4)


def test_gradients_and_other_layouts() -> None:
    def function(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid.tanh(), align_corners=False).relu()

    call = compiled(function)
    for batch in (2, 3):
        x = torch.randn(batch, 4, 5, 6, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
        grid = torch.randn(batch, 2, 3, 4, dtype=torch.float64).permute(0, 2, 3, 1).requires_grad_()
        got, want = call(x, grid), function(x, grid)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        grad = torch.randn_like(want)
        torch.testing.assert_close(
            torch.autograd.grad(got, (x, grid), grad), torch.autograd.grad(want, (x, grid), grad)
        )


def test_one_operator_is_one_kernel_with_what_follows() -> None:
    call = compiled(lambda x, grid: F.grid_sample(x, grid, align_corners=False) * 2 + 1)
    polytile.reset()
    with torch.no_grad():
        call(torch.randn(2, 3, 6, 7), positions(2, 4, 5))
    operators = {
        row.operator: row.how for program in polytile.compiler.programs.compiled_programs() for row in program.operators
    }
    assert operators["aten.grid_sampler_2d.default"] == "generated"
    assert not polytile.counters["library_calls"]
