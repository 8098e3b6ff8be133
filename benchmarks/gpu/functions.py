"""What the GPU suite times: functions of one activation of M rows and N columns, with their inputs and least traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, int]

SHAPES: tuple[Shape, ...] = (
    (1, 4096), (16, 4096), (128, 64), (8192, 64), (131072, 64), (4096, 1024), (16384, 1024), (2048, 4096), (8192, 4096),
    (1024, 16384), (64, 131072), (4, 1048576),
)  # fmt: skip
TRACED: Shape = (4096, 1024)
"""The shape of the first call, by which dynamic compiles are made."""

VOCABULARY = 32768


def shape_of(text: str) -> Shape:
    """ "4096x1024" or "4096×1024"."""
    m, n = text.replace("×", "x").split("x")
    return int(m), int(n)


@dataclass(frozen=True)
class Function:
    """`make(shape, dtype)` gives the inputs; `traffic(m, n, bytes of an element)` the bytes that must be read and
    written at least; `exact`: the result does not depend on random numbers, so it can be compared; `rows`: the fewest that
    the function is defined for."""

    name: str
    run: Callable[..., Any]
    make: Callable[[Shape, torch.dtype], tuple[Any, ...]]
    traffic: Callable[[int, int, int], int]
    exact: bool = True
    rows: int = 1


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x) * x


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target)


def add_rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, w), total


def layer_norm_backward(gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor) -> Any:
    shape = [x.shape[-1]]
    return torch.ops.aten.native_layer_norm_backward(gradient, x, shape, mean, rstd, w, b, [True, True, True])


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, w, b, training=True)


def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x + y.t()


def geglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.1, True)


def embedding_backward(gradient: Tensor, index: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(gradient, index, VOCABULARY // 32, -1, False)


def _x(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    return (normal(*shape, dtype=dtype),)


def _weighted(count: int) -> Callable[[Shape, torch.dtype], tuple[Any, ...]]:
    return lambda shape, dtype: (*_x(shape, dtype), *[normal(shape[1], dtype=dtype) for _ in range(count)])


def _labelled(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_x(shape, dtype), torch.randint(0, shape[1], (shape[0],), device="cuda")


def _residual(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_x(shape, dtype), *_x(shape, dtype), normal(shape[1], dtype=dtype)


def _saved(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    gradient, x = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    wide = x.float()
    mean, rstd = wide.mean(-1, keepdim=True), torch.rsqrt(wide.var(-1, unbiased=False, keepdim=True) + 1e-5)
    return gradient, x, mean, rstd, normal(shape[1], dtype=dtype), normal(shape[1], dtype=dtype)


def _statistics(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    zeros, ones = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")
    return *_x(shape, dtype), zeros, ones, normal(shape[1]), normal(shape[1])


def _transposed(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    return normal(*shape, dtype=dtype), normal(*reversed(shape), dtype=dtype)


def _indexed(shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_x(shape, dtype), torch.randint(0, VOCABULARY // 32, (shape[0],), device="cuda")


FUNCTIONS: tuple[Function, ...] = (
    Function("softmax", softmax, _x, lambda m, n, e: 2 * m * n * e),
    Function("rms_norm", rms_norm, _weighted(1), lambda m, n, e: 2 * m * n * e + n * e),
    Function("layer_norm", layer_norm, _weighted(2), lambda m, n, e: 2 * m * n * e + 2 * n * e),
    Function("gelu", gelu, _x, lambda m, n, e: 2 * m * n * e),
    Function("cross_entropy", cross_entropy, _labelled, lambda m, n, e: m * n * e + 8 * m),
    Function("add_rms_norm", add_rms_norm, _residual, lambda m, n, e: 4 * m * n * e + n * e),
    Function("layer_norm_backward", layer_norm_backward, _saved, lambda m, n, e: 3 * m * n * e + 8 * m + 3 * n * e),
    Function("batch_norm", batch_norm, _statistics, lambda m, n, e: 2 * m * n * e + 24 * n, rows=2),
    Function("cumsum", cumsum, _x, lambda m, n, e: 2 * m * n * e),
    Function("column_sum", column_sum, _x, lambda m, n, e: m * n * e + n * e),
    Function("transpose_add", transpose_add, _transposed, lambda m, n, e: 3 * m * n * e),
    Function("geglu", geglu, _x, lambda m, n, e: 3 * m * n * e // 2),
    Function("dropout", dropout, _x, lambda m, n, e: 2 * m * n * e, exact=False),
    Function("embedding_backward", embedding_backward, _indexed, lambda m, n, e: m * n * e + VOCABULARY // 32 * n * e),
)
BY_NAME = {function.name: function for function in FUNCTIONS}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
