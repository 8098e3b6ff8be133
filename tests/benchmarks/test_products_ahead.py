"""Kernels of products that are asked for ahead are those that calls take."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from benchmarks.compilers import copied
from benchmarks.gpu import products
from benchmarks.gpu.products import Shape
from benchmarks.gpu.products_ahead import Compiled
from polytile import options
from polytile.dispatch.multikernel import MultiKernel

TRACED = (96, 160, 224)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, tune="off"):
        yield


def linear(m: int, n: int, k: int) -> tuple[Any, ...]:
    return torch.randn(m, k), torch.randn(n, k), torch.randn(n)


def packed(m: int, n: int, k: int) -> tuple[Any, ...]:
    return torch.randn(m, k), torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), torch.rand(n, 1)


@pytest.mark.parametrize(("run", "make"), [(products.linear_gelu, linear), (products.weights_int4, packed)])
def test_what_is_asked_for_is_what_is_called(
    run: Callable[..., Any], make: Callable[..., tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[MultiKernel, Sequence[int]]] = []
    monkeypatch.setattr(MultiKernel, "prepare", lambda kernel, ints: asked.append((kernel, ints)))
    shapes: tuple[Shape, ...] = ((3, 20, 40), (1, 20, 40), (2, 40, 40))
    compiled = Compiled(copied(run, "ours"), make, TRACED, {"persist": False})
    compiled.ask(shapes)
    for m, n, k in shapes:
        args = make(m, n, k)
        with options.override(force="aten*,materialised operands"):
            torch.testing.assert_close(compiled.call(*args), run(*args), rtol=1e-4, atol=1e-4)
        (sizes,) = [
            dict(decision.sizes)
            for kernel, ints in asked
            if kernel.spec.family == "mm" and kernel.spec.sizes(ints)["M"] == m and kernel.spec.sizes(ints)["N"] == n
            if (decision := kernel.decision_at(*ints)) is not None
        ]
        assert (sizes["M"], sizes["N"], sizes["K"]) == (m, n, k)
