"""Sampling images at positions that are data: the library's call, with its gradients and layouts."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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

    call = compiled(function)
    for extents, result in (((5, 7, 4), (6, 3, 5)), ((9, 2, 6), (2, 17, 3)), ((1, 3, 1), (4, 2, 2))):
        x, grid = torch.randn(2, 3, *extents[:rank]), positions(2, *result[:rank])
        got, want = call(x, grid), function(x, grid)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride()


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
