"""Adaptive averages on the CPU: sums along one dimension after the other, right in every layout, with gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.behaviour.helpers import compiled

SHAPES = ((2, 3, 33, 20), (4, 17, 7, 7), (1, 2, 3, 5), (2, 20, 16, 9), (3, 1, 14, 50))
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def _averages(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, (7, 4))


def _check(function: object, call: object, x: Tensor, tolerance: float = 1e-5) -> None:
    assert callable(function) and callable(call)
    got, want = call(x), function(x)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert got.stride() == want.stride()
    grad = torch.randn_like(want)
    (got,), (want,) = (torch.autograd.grad(y, x, grad) for y in (got, want))
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("force", ["looped t1", "short t1"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["row-major", "channels last"])
def test_results_and_gradients_are_those_of_eager(layout: torch.memory_format, force: str) -> None:
    call = compiled(_averages, force=force)
    for shape in SHAPES:
        _check(_averages, call, torch.randn(shape).contiguous(memory_format=layout).requires_grad_())


def test_of_slices_and_transposed_images() -> None:
    call = compiled(_averages)
    for x in (torch.randn(2, 3, 40, 30)[:, 1:, 3:, ::2], torch.randn(2, 3, 19, 30).transpose(2, 3), torch.randn(5, 11, 13)):
        _check(_averages, call, x.detach().requires_grad_())


def test_of_sixteen_bits_rounds_once() -> None:
    call = compiled(_averages)
    x = torch.randn(2, 5, 23, 31).bfloat16()
    torch.testing.assert_close(call(x), _averages(x.float()).bfloat16(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("size", [(3, 4, 2), (1, 5, 1), (9, 9, 9)])
def test_of_three_dimensions(size: tuple[int, int, int]) -> None:
    def function(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(x, size)

    call = compiled(function)
    for shape in ((2, 3, 7, 6, 5), (1, 2, 9, 10, 11)):
        _check(function, call, torch.randn(shape).requires_grad_())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_integers_are_refused_as_eager_refuses_them(rank: int) -> None:
    pool = getattr(F, f"adaptive_avg_pool{rank}d")

    def function(x: Tensor) -> Tensor:
        averaged: Tensor = pool(x.argmax(1), 5)
        return averaged

    for size in (1, 12):
        x = torch.randn(2, 3, 3, *[size] * rank)
        with pytest.raises(NotImplementedError) as eager:
            function(x)
        with pytest.raises(NotImplementedError) as mine:
            compiled(function)(x)
        assert str(mine.value) == str(eager.value)
