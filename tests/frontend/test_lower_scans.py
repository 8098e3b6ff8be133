"""Cumulative operators."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, check_each, lower
from values import ALL, numbers

from polytile.ir.loop import Loop

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-6, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_totals(dtype: torch.dtype) -> None:
    everything = {
        f"{name} {dim}": lambda x, name=name, dim=dim: getattr(torch, name)(x, dim)
        for name in ("cumsum", "cumprod", "logcumsumexp")
        for dim in (0, 1, -1)
    }
    check_each(everything, numbers(dtype, 3, 4, 5, special=False), tolerances=TOLERANCES)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_extremes_and_where_they_stand(dtype: torch.dtype) -> None:
    everything = {
        f"{name} {dim} {k}": lambda x, name=name, dim=dim, k=k: getattr(torch, name)(x, dim)[k]
        for name in ("cummax", "cummin")
        for dim in (0, -1)
        for k in (0, 1)
    }
    check_each(everything, numbers(dtype, 5, 16))


@pytest.mark.parametrize("target", [torch.float64, torch.float32, torch.int32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.int32, torch.bool], ids=str)
def test_the_dtype_argument_converts_first(source: torch.dtype, target: torch.dtype) -> None:
    everything = {
        "cumsum": lambda x: x.cumsum(0, dtype=target),
        "cumprod": lambda x: x.cumprod(1, dtype=target),
    }
    check_each(everything, numbers(source, 4, 5, special=False), tolerances=TOLERANCES)


def test_the_scanned_axis_is_the_only_reduced_one() -> None:
    (loop,) = lower(lambda x: x.cumsum(1), torch.randn(2, 3, 4)).operations
    assert isinstance(loop, Loop)
    assert (len(loop.axes), len(loop.reduced)) == (2, 1)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,)], ids=str)
def test_empty_and_single_elements(shape: tuple[int, ...]) -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(-1), *x.cummax(0)), torch.randn(shape))


def test_a_long_prefix_is_as_precise_as_eagers() -> None:
    check(lambda x: x.cumsum(0), torch.rand(200_000), rtol=1e-6, atol=0)


def test_of_a_permuted_input() -> None:
    check(lambda x: x.transpose(0, 1).cumsum(0) * 2, torch.randn(4, 5), rtol=1e-5, atol=1e-6)
