"""Reductions: values, types and shapes as eager's, in every form of the dimension argument."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, check_each, library_calls, lower
from values import ALL, FLOATS, numbers

from polytile.ir import expr
from polytile.ir.loop import Loop

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-12}
DIMS: dict[str, dict[str, Any]] = {
    "all": {}, "0": {"dim": 0}, "-1": {"dim": -1}, "(0, 2)": {"dim": (0, 2)}, "(-1, 1)": {"dim": (-1, 1)},
    "(1,) kept": {"dim": (1,), "keepdim": True}, "all kept": {"dim": (0, 1, 2), "keepdim": True},
}  # fmt: skip


def over_dims(name: str, **settings: Any) -> dict[str, Callable[..., Any]]:
    """The reduction torch.`name` over each kind of dimension argument that it takes."""
    fn = getattr(torch, name)
    return {f"{name} over {label}": lambda x, kw=kw: fn(x, **kw, **settings) for label, kw in DIMS.items()}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_sums_and_means(dtype: torch.dtype) -> None:
    x = numbers(dtype, 3, 4, 5, special=False)
    everything = {**over_dims("sum"), **over_dims("mean"), **over_dims("nansum"), **over_dims("count_nonzero")}
    everything |= {"prod": torch.prod, "prod over 1": lambda x: x.prod(1), "prod kept": lambda x: x.prod(2, True)}
    check_each(everything, x, tolerances=TOLERANCES)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    x = numbers(dtype, 3, 4, 5)
    everything = {**over_dims("amax"), **over_dims("amin"), **over_dims("argmax"), **over_dims("argmin")}
    everything |= {
        "max": torch.max, "min": torch.min, "aminmax": lambda x: torch.aminmax(x).max,
        "max values": lambda x: x.max(1).values, "max indices": lambda x: x.max(-1, keepdim=True).indices,
        "min values": lambda x: x.min(0, keepdim=True).values, "min indices": lambda x: x.min(2).indices,
    }  # fmt: skip
    check_each(everything, x)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_truth(dtype: torch.dtype) -> None:
    everything = {**over_dims("any"), **over_dims("all"), "any of no dims": lambda x: torch.any(x, dim=[])}
    check_each(everything, numbers(dtype, 3, 4, 5) * (torch.rand(3, 4, 5) > 0.5))


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_variances(dtype: torch.dtype, correction: float) -> None:
    everything = {**over_dims("var", correction=correction), **over_dims("std", correction=correction)}
    for k in (0, 1):
        everything[f"var_mean {k}"] = lambda x, k=k: torch.var_mean(x, (0, 2), correction=correction)[k]
        everything[f"std_mean {k}"] = lambda x, k=k: torch.std_mean(x, 1, correction=correction, keepdim=True)[k]
    check_each(everything, numbers(dtype, 3, 4, 5, special=False), tolerances=TOLERANCES)


def test_a_correction_that_is_a_size() -> None:
    check(lambda x, y: (x.var(0, correction=y.shape[0]), x.std(1, correction=y.shape[0])), torch.randn(6, 7), torch.ones(3))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_deviations_of_numbers_whose_squares_overflow() -> None:
    x = torch.randn(5, 7) * torch.tensor([1e20, 1e30, 1e37, 1e-3, 1.0])[:, None]
    check_each({**over_dims("std"), "std_mean": lambda x: torch.std_mean(x, 1)[0]}, x[:, None, :])
    check(lambda x: x.bfloat16().std(1), x)


def test_a_variance_without_degrees_of_freedom() -> None:
    check(lambda x: (x.var(0), x.std(0, correction=3), x.var(1)), torch.randn(1, 4))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms(dtype: torch.dtype) -> None:
    everything = {
        f"order {order} over {dim}": lambda x, order=order, dim=dim: torch.linalg.vector_norm(x, order, dim)
        for order in (0, 1, 2, 3, 2.5, -1, math.inf, -math.inf)
        for dim in (None, 1, (0, -1))
    }
    everything |= {
        "logsumexp": lambda x: x.logsumexp((0, 2)), "norm": torch.norm, "dist": lambda x: torch.dist(x, x * 2),
        "normalize": lambda x: torch.nn.functional.normalize(x, dim=1),
    }  # fmt: skip
    check_each(everything, numbers(dtype, 3, 4, 5, special=False), tolerances=TOLERANCES)


@pytest.mark.parametrize("target", [torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_the_dtype_argument_converts_first(source: torch.dtype, target: torch.dtype) -> None:
    everything = {
        "sum": lambda x: x.sum(dtype=target), "sum over 0": lambda x: x.sum(0, dtype=target),
        "mean": lambda x: x.mean(1, dtype=target), "prod": lambda x: x.prod(0, dtype=target),
        "norm": lambda x: torch.linalg.vector_norm(x, 2, 1, dtype=target),
    }  # fmt: skip
    check_each(everything, numbers(source, 4, 5, special=False), tolerances={**TOLERANCES, torch.float32: 1e-2})


def test_sums_of_small_integers_are_int64() -> None:
    x = torch.full((300,), 250, dtype=torch.uint8)
    check(lambda x: (x.sum(), x.prod(0), x.bool().sum()), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_one_element(dtype: torch.dtype) -> None:
    everything = {
        "sum": torch.sum, "sum over 0": lambda x: x.sum(0), "amax": lambda x: x.amax(-1), "argmax": torch.argmax,
        "argmin over 0": lambda x: x.argmin(0), "any": torch.any, "max": lambda x: x.max(0).values,
        "max indices": lambda x: x.max(0).indices, "var": lambda x: x.var(correction=0), "mean": torch.mean,
        "norm": torch.linalg.vector_norm, "count": torch.count_nonzero, "prod": torch.prod,
    }  # fmt: skip
    check_each(everything, torch.ones((), dtype=dtype))


def test_over_nothing() -> None:
    everything = {
        "sum": lambda x: x.sum(0), "prod": lambda x: x.prod(0), "mean": lambda x: x.mean(0), "any": lambda x: x.any(0),
        "all": lambda x: x.bool().all(0), "norm": lambda x: torch.linalg.vector_norm(x, 2, 0), "total": torch.sum,
        "count": torch.count_nonzero, "amax over another": lambda x: x.amax(1), "nansum": torch.nansum,
        "argmax over another": lambda x: x.argmax(1),
    }  # fmt: skip
    check_each(everything, torch.randn(0, 3))


def test_the_extreme_of_nothing_is_eagers_error() -> None:
    with pytest.raises((RuntimeError, IndexError)):
        lower(lambda x: x.amax(0), torch.randn(0, 3))


def test_ties_and_nan_of_argmax() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0], [math.nan, 5.0, math.nan, 6.0], [-math.inf] * 4])
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1).values, x.min(1).indices, x.argmax(), x.amin(1)), x)


def test_long_16_bit_sums_keep_their_precision() -> None:
    x = torch.full((4096,), 0.1, dtype=torch.bfloat16)
    check(lambda x: (x.sum(), x.mean(), x.norm()), x)


def test_variance_is_one_welford_reduction() -> None:
    program = lower(lambda x: torch.var_mean(x, 1), torch.randn(4, 5))
    (loop,) = [op for op in program.operations if isinstance(op, Loop)]
    reductions = [n for n in expr.walk(*loop.roots) if isinstance(n, expr.Reduce)]
    assert [n.kind for n in reductions] == ["welford"]


def test_of_permuted_and_sliced_inputs() -> None:
    x = torch.randn(4, 6, 5)
    check(
        lambda x: (x.permute(2, 0, 1).sum(1), x[:, 1:4].amax(1), x.transpose(0, 2).argmax(1)), x, rtol=1e-5, atol=1e-5
    )


def test_complex_is_left_to_the_library() -> None:
    assert library_calls(lower(lambda x: torch.complex(x, x).sum(), torch.randn(4)))
