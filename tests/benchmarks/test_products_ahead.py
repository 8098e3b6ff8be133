"""Kernels of products that are asked for ahead are those that calls take."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from benchmarks.gpu import products
from benchmarks.gpu.products import Case, Shape
from benchmarks.gpu.products_ahead import Compiled
from polytile import options
from polytile.multikernel import MultiKernel

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, tune="off"):
        yield


def linear(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)


def packed(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    numbers = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    return torch.randn(m, k).to(dtype), numbers, torch.rand(n, 1).to(dtype)


@pytest.mark.parametrize(("run", "make"), [(products.linear_gelu, linear), (products.weights_int4, packed)])
def test_what_is_asked_for_is_what_is_called(
    run: Callable[..., Any], make: Callable[..., tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[MultiKernel, Sequence[int]]] = []
    monkeypatch.setattr(MultiKernel, "prepare", lambda kernel, ints: asked.append((kernel, ints)))
    shapes: tuple[Shape, ...] = ((3, 20, 40), (1, 20, 40), (2, 40, 40))
    compiled = Compiled(Case("part", "name", run, make, ("fp32",), shapes), "fp32", {"persist": False})
    compiled.ask(shapes)
    for m, n, k in shapes:
        args = make(m, n, k, torch.float32)
        with options.override(force="aten*,stored first"):
            torch.testing.assert_close(compiled.call(*args), run(*args), rtol=1e-4, atol=1e-4)
        (sizes,) = [
            dict(decision.sizes)
            for kernel, ints in asked
            if kernel.spec.family == "mm" and kernel.spec.sizes(ints)["M"] == m and kernel.spec.sizes(ints)["N"] == n
            if (decision := kernel.decision_at(*ints)) is not None
        ]
        assert (sizes["M"], sizes["N"], sizes["K"]) == (m, n, k)
