"""Sums down columns in the loop along the rows of the same matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytile import options
from tests import interpret
from tests.passes.helpers import loops, optimized

pytestmark = pytest.mark.usefixtures("on_gpu")


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
    mean, rstd = x.mean(-1, keepdim=True), x.float().square().mean(-1, keepdim=True)
    return torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])


def rms_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    normal = x * rstd
    return rstd * (g * w - normal * (g * w * normal).mean(-1, keepdim=True)), (g * normal).sum(0)


def matrices(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return torch.randn(12, 40).to(dtype), torch.randn(12, 40).to(dtype), torch.randn(40).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_layer_norm_are_one_loop(dtype: torch.dtype) -> None:
    mean, rstd = torch.randn(12, 1), torch.rand(12, 1)

    def function(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])

    args = (*matrices(dtype), mean, rstd)
    program = optimized(function, *args)
    (loop,) = loops(program)
    assert [store.mode for store in loop.stores] == ["sum", "sum", "set"]
    for got, want in zip(interpret.run(program, args), function(*[a.double() for a in args]), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


def test_sums_that_need_the_rows_own_reductions_stay_apart() -> None:
    program = optimized(rms_norm_backward, *matrices())
    assert not any(store.is_segment_sum for loop in loops(program) for store in loop.stores)


def test_sums_of_other_matrices_stay_apart() -> None:
    program = optimized(lambda x, y, _: (torch.softmax(x, -1), y.sum(0)), *matrices())
    assert not any(store.is_segment_sum for loop in loops(program) for store in loop.stores)


def test_sums_of_what_the_rows_store_stay_apart() -> None:
    program = optimized(lambda x, y, _: ((z := torch.softmax(x, -1)), z.sum(0)), *matrices())
    assert not any(store.is_segment_sum for loop in loops(program) for store in loop.stores)


def test_greatest_values_of_columns_stay_apart() -> None:
    program = optimized(lambda x, y, _: (torch.softmax(x, -1), x.amax(0)), *matrices())
    assert not any(store.is_segment_sum for loop in loops(program) for store in loop.stores)


def test_on_a_cpu_each_has_its_own_loop() -> None:
    with options.override(interpret=False):
        program = optimized(lambda x, y, _: (torch.softmax(x, -1), x.sum(0)), *matrices())
    assert not any(store.is_segment_sum for loop in loops(program) for store in loop.stores)


def test_columns_of_what_a_softmax_reads() -> None:
    args = matrices()
    program = optimized(lambda x, y, _: (torch.softmax(x, -1), (x * y).sum(0)), *args)
    (loop,) = loops(program)
    got = interpret.run(program, args)
    torch.testing.assert_close(got[1], (args[0] * args[1]).sum(0))
    assert sum(store.is_segment_sum for store in loop.stores) == 1
