"""Pooling and resampling against eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytile.ir import expr
from polytile.ir.loop import Loop
from tests.frontend.lowering import agrees, check, run

Function = Callable[..., Any]

POOLS: dict[str, dict[str, Any]] = {
    "even": {"kernel_size": 2},
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "beyond the end": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0), "ceil_mode": True},
    "overlapping": {"kernel_size": (2, 4), "stride": 1, "padding": (1, 2)},
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("extra", [{}, {"count_include_pad": False}, {"divisor_override": 3}])
def test_averages_of_windows(name: str, extra: dict[str, Any]) -> None:
    fn = lambda x: F.avg_pool2d(x, **POOLS[name], **extra)  # noqa: E731
    program = check(fn, torch.randn(2, 3, 9, 8))
    agrees(program, fn, torch.randn(4, 5, 11, 7))


@pytest.mark.parametrize("name", POOLS)
def test_maxima_of_windows(name: str) -> None:
    fn = lambda x: F.max_pool2d(x, **POOLS[name], return_indices=True)  # noqa: E731
    program = check(fn, torch.randn(2, 3, 9, 8))
    x = torch.randn(4, 5, 11, 7)
    for mine, eager in zip(run(program, [x]), fn(x), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("length", [9, 10, 11, 12])
def test_windows_end_at_every_distance_from_the_end(length: int) -> None:
    spans = [
        {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": True}
        for kernel, stride, padding, dilation in itertools.product((2, 3), (2, 3, 4), (0, 1), (1, 2))
    ]
    check(lambda x: tuple(F.max_pool2d(x, **span) for span in spans), torch.randn(2, 3, 7, length))


def test_windows_that_are_rounded_up_ask_only_for_what_may_lie_beyond_the_end() -> None:
    program = check(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), torch.randn(2, 3, 10, 12))
    (loop,) = (op for op in program.operations if isinstance(op, Loop))
    assert sum(load.mask is None for load in expr.loads(*loop.roots)) == 4, "the first two rows and columns are always inside"


def test_more_pools() -> None:
    x = torch.randn(2, 3, 9, 8)
    check(lambda x: F.max_pool2d(x, 2, dilation=2, padding=1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), (x * 10).long())
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x.bfloat16())
    check(lambda x: F.max_pool1d(x, 3, 2), x[0])
    check(lambda x: F.max_pool3d(x, (3, 2, 3), padding=1), torch.randn(2, 3, 6, 5))  # a result of size 1 known by a guard
    check(lambda x: F.avg_pool2d(x, (7, 6), padding=1, stride=2), x)
    check(lambda x: F.avg_pool2d(x, (7, 6), padding=1, stride=2, count_include_pad=False, ceil_mode=True), x)
    check(lambda x: F.avg_pool2d(x.exp(), 2), x[0].double())
    check(lambda x: F.avg_pool2d(x, 2), x.to(memory_format=torch.channels_last))
    check(lambda x: F.avg_pool1d(x, 2), x[0])


def test_maxima_of_windows_with_nan_and_nothing_but_minus_infinity() -> None:
    x = torch.randn(2, 3, 8, 8)
    x[0, 0] = -torch.inf
    x[0, 1, ::3] = torch.nan
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 3, 2, padding=1, return_indices=True), x)


def test_averages_of_integers_round_towards_zero() -> None:
    check(lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), torch.randint(-20, 20, (2, 3, 9, 8)))


def test_windows_that_step_along_rows_are_summed_down_their_columns_first() -> None:
    """Each sum of columns runs along whole rows, where vectors are contiguous; few reads are left that step."""

    def reads(fn: Callable[..., Any], x: torch.Tensor) -> list[int]:
        program = check(fn, x)
        return [len(list(expr.loads(*op.roots))) for op in program.operations if isinstance(op, Loop)]

    x = torch.randn(2, 3, 11, 14)
    assert reads(lambda x: F.avg_pool2d(x, 5), x) == [5, 5]
    assert reads(lambda x: F.avg_pool2d(x, 5, ceil_mode=True, count_include_pad=False), x) == [5, 5]
    assert reads(lambda x: F.avg_pool3d(x, 3, 2, 1), torch.randn(2, 7, 8, 9)) == [9, 3]
    assert reads(lambda x: F.avg_pool2d(x, 2), x) == [4], "there is too little to save"
    assert reads(lambda x: F.avg_pool2d(x, 5), x.to(memory_format=torch.channels_last)) == [25], "channels are contiguous"


def test_resampling_reads_by_position() -> None:
    x = torch.randn(2, 3, 5, 6)
    check(lambda x: F.interpolate(x, scale_factor=2), x)
    check(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)
