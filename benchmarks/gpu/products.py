"""Matrix products: what is measured on a GPU, part by part, one dynamic compile of each function.

    square     x @ y at n × n × n
    llm        x @ w.T at M rows and the weights of a language model
    thin       the same with few rows, where reading the weights is all there is to do
    epilogue   with bias, activation and residual
    int8, fp8  quantised products with their scales
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Shape = tuple[int, int, int]
"""(M, N, K)"""

WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336))
"""(N, K) of a language model's linear layers."""
ROWS = (1, 2, 3, 4, 8, 13, 16)
FP8 = torch.float8_e4m3fn


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w)


def linear_relu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.relu(F.linear(x, w))


def linear_gelu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, bias))


def linear_residual(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w) + residual


def dequantised(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (torch._int_mm(x, w.t()).float() * scale).to(torch.bfloat16)


def scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def _normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def _int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)


@dataclass(frozen=True)
class Case:
    """One function of a part. `make(m, n, k, dtype)` gives its arguments on the GPU; `dtypes` and `shapes` are those it is
    measured at."""

    part: str
    name: str
    run: Callable[..., Any]
    make: Callable[[int, int, int, torch.dtype], tuple[Any, ...]]
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]


def _square(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _normal(m, k, dtype=dtype), _normal(k, n, dtype=dtype)


def _linear(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _normal(m, k, dtype=dtype), _normal(n, k, dtype=dtype)


def _with_bias(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (*_linear(m, n, k, dtype), _normal(n, dtype=dtype))


def _with_residual(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (*_linear(m, n, k, dtype), _normal(m, n, dtype=dtype))


def _quantised(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _int8(m, k), _int8(n, k), torch.rand(n, device="cuda")


def _float8(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x, w = (_normal(*shape, dtype=torch.float32).to(FP8) for shape in ((m, k), (n, k)))
    return x, w, torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")


def squares(step: int) -> tuple[Shape, ...]:
    return tuple((n, n, n) for n in range(step, 4097, step))


def at_weights(rows: Sequence[int]) -> tuple[Shape, ...]:
    return tuple((m, n, k) for n, k in WEIGHTS for m in rows)


def cases(step: int) -> tuple[Case, ...]:
    """All cases; `step` apart are the sizes of squares and the rows of the language model's products."""
    rows = tuple(range(step, 4097, step))
    some = (64, 128, 512, 1024, 2048, 4096)
    return (
        Case("square", "x @ y", product, _square, ("bf16", "fp16", "fp32", "tf32"), squares(step)),
        Case("llm", "linear", linear, _linear, ("bf16",), at_weights(rows)),
        Case("thin", "linear", linear, _linear, ("bf16", "fp16"), at_weights(ROWS)),
        Case("epilogue", "relu", linear_relu, _linear, ("bf16",), at_weights(some)),
        Case("epilogue", "bias + gelu", linear_gelu, _with_bias, ("bf16",), at_weights(some)),
        Case("epilogue", "residual", linear_residual, _with_residual, ("bf16",), at_weights(some)),
        Case("int8", "int8 × int8, scaled", dequantised, _quantised, ("int8",), at_weights((32, *some))),
        Case("fp8", "fp8, scaled by rows", scaled, _float8, ("fp8",), at_weights((32, *some))),
    )


DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "int8": torch.int8, "fp8": FP8,
}  # fmt: skip
PARTS = ("square", "llm", "thin", "epilogue", "int8", "fp8")


def traffic(case: Case, shape: Shape) -> float:
    """Bytes that operands and result take in memory."""
    m, n, k = shape
    size = DTYPES[case.dtypes[0]].itemsize
    return (m * k + n * k) * size + m * n * max(2, size)


__all__ = ["DTYPES", "PARTS", "Case", "Shape", "cases", "product", "traffic"]
