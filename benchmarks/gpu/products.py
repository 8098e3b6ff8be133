"""Matrix products: what is measured on a GPU, part by part, one dynamic compile of each function.

    square     x @ y at n × n × n, of 8-bit operands with their scales
    llm        x @ w.T at M rows and the weights of a language model, likewise
    thin       the same with few rows, where reading the weights is all there is to do
    epilogue   with bias, activation and residual
    int8, fp8  quantised products with their scales
    long       x @ y of few blocks and long K: splits and equal shares along k
    odd        x @ y whose rows are no multiple of 16 bytes apart: padding
    prologue   operands computed on their way: int8 and int4 weights, an activation, a norm's factors
    pair       x @ y + v @ w
    batch      x @ y of a batch: heads of attention
    rows       with what the rows of the result come to: mean squares, a logsumexp
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
LONG = (
    (64, 64, 65536), (128, 128, 32768), (256, 256, 16384), (512, 512, 8192), (512, 512, 65536), (768, 768, 16384),
    (1024, 1024, 8192), (1536, 1536, 4096), (1536, 1536, 16384), (96, 4096, 16384),
)  # fmt: skip
ODD = (
    (127, 129, 131), (300, 501, 700), (501, 500, 701), (1000, 1001, 1003), (1023, 1025, 1024), (2047, 2049, 2051),
    (4095, 4097, 4099), (17, 4095, 4095), (300, 500, 50257), (128, 50257, 768),
)  # fmt: skip
VOCABULARY = tuple((m, n, 4096) for n in (32000, 128256) for m in (16, 128, 1024))
BATCH = 16
HEADS = tuple(shape for n in (64, 128, 300, 512, 1024) for shape in ((n, n, 64), (n, 64, n)))
"""Scores, and what attention weighs by them, of one head."""
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


def scaled_by_blocks(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A scale for every 128 elements of a row of `x`, and for every 128 by 128 of `w`."""
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def weights_int8(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ (w.to(x.dtype) * scale).t()


def weights_int4(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`w`: two numbers a byte, the low half first along k."""
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)
    return x @ ((numbers.to(x.dtype) - 8) * scale).t()


def weights_int4_groups(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same with a scale for every 128 numbers of a row."""
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)
    factors = scale[:, :, None].expand(-1, -1, 128).reshape(w.shape[0], -1)
    return x @ ((numbers.to(x.dtype) - 8) * factors).t()


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(x), w)


def normed(x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return F.linear(x * rstd * gain, w)


def two_products(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ y + v @ w


def row_squares(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A residual stream, and what its RMSNorm needs of it."""
    y = F.linear(x, w) + residual
    return y, y.float().pow(2).mean(-1)


def row_logsumexp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w).float().logsumexp(-1)


def _normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def _int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)


@dataclass(frozen=True)
class Case:
    """One function of a part. `make(m, n, k, dtype)` gives its arguments on the GPU; `dtypes` and `shapes` are those it is
    measured at, `traced` sizes that are told apart in all of its arguments' shapes."""

    part: str
    name: str
    run: Callable[..., Any]
    make: Callable[[int, int, int, torch.dtype], tuple[Any, ...]]
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    traced: Shape = (96, 160, 224)


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


def _float8_blocks(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """The library asks for a multiple of 512 for K, and of 128 for N."""
    x, w = (_normal(*shape, dtype=torch.float32).to(FP8) for shape in ((m, k), (n, k)))
    return x, w, torch.rand(k // 128, m, device="cuda").t(), torch.rand(n // 128, k // 128, device="cuda").t()


def _int8_weights(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _normal(m, k, dtype=dtype), _int8(n, k), torch.rand(n, 1, device="cuda").to(dtype)


def _int4_weights(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    packed = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    return _normal(m, k, dtype=dtype), packed, torch.rand(n, 1, device="cuda").to(dtype)


def _int4_groups(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x, packed, _ = _int4_weights(m, n, k, dtype)
    return x, packed, torch.rand(n, k // 128, device="cuda").to(dtype)


def _factors(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (*_linear(m, n, k, dtype), torch.rand(m, 1, device="cuda").to(dtype), torch.rand(k, device="cuda").to(dtype))


def _two(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (*_square(m, n, k, dtype), *_square(m, n, k, dtype))


def _batches(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _normal(BATCH, m, k, dtype=dtype), _normal(BATCH, k, n, dtype=dtype)


def squares(step: int) -> tuple[Shape, ...]:
    return tuple((n, n, n) for n in range(step, 4097, step))


def at_weights(rows: Sequence[int]) -> tuple[Shape, ...]:
    return tuple((m, n, k) for n, k in WEIGHTS for m in rows)


def cases(step: int) -> tuple[Case, ...]:
    """All cases; `step` apart are the sizes of squares and the rows of the language model's products."""
    rows = tuple(range(step, 4097, step))
    some = (64, 128, 512, 1024, 2048, 4096)
    few = (1, 16, 128, 1024)
    return (
        Case("square", "x @ y", product, _square, ("bf16", "fp16", "fp32", "tf32"), squares(step)),
        Case("square", "int8 × int8, scaled", dequantised, _quantised, ("int8",), squares(step)),
        Case("square", "fp8, scaled by rows", scaled, _float8, ("fp8",), squares(step)),
        Case("llm", "linear", linear, _linear, ("bf16", "fp16", "fp32", "tf32"), at_weights(rows)),
        Case("llm", "int8 × int8, scaled", dequantised, _quantised, ("int8",), at_weights(rows)),
        Case("llm", "fp8, scaled by rows", scaled, _float8, ("fp8",), at_weights(rows)),
        Case("thin", "linear", linear, _linear, ("bf16", "fp16"), at_weights(ROWS)),
        Case("epilogue", "relu", linear_relu, _linear, ("bf16",), at_weights(some)),
        Case("epilogue", "bias + gelu", linear_gelu, _with_bias, ("bf16",), at_weights(some)),
        Case("epilogue", "residual", linear_residual, _with_residual, ("bf16",), at_weights(some)),
        Case("int8", "int8 × int8, scaled", dequantised, _quantised, ("int8",), at_weights((32, *some))),
        Case("fp8", "fp8, scaled by rows", scaled, _float8, ("fp8",), at_weights((32, *some))),
        Case("fp8", "fp8, scaled by blocks", scaled_by_blocks, _float8_blocks, ("fp8",), at_weights((32, *some)), (96, 384, 512)),
        Case("long", "x @ y", product, _square, ("bf16", "fp32"), LONG),
        Case("odd", "x @ y", product, _square, ("bf16", "fp16"), ODD),
        Case("prologue", "int8 weights", weights_int8, _int8_weights, ("bf16",), at_weights(few)),
        Case("prologue", "int4 weights", weights_int4, _int4_weights, ("bf16",), at_weights(few)),
        Case(
            "prologue", "int4 weights, groups of 128", weights_int4_groups, _int4_groups, ("bf16",), at_weights(few),
            (96, 384, 512),
        ),
        Case("prologue", "gelu", activated, _linear, ("bf16",), at_weights(few)),
        Case("prologue", "norm's factors", normed, _factors, ("bf16",), at_weights(few)),
        Case("pair", "x @ y + v @ w", two_products, _two, ("bf16",), squares(512)),
        Case("batch", "batches", product, _batches, ("bf16", "fp32"), HEADS),
        Case("rows", "residual, mean squares", row_squares, _with_residual, ("bf16",), at_weights(few)),
        Case("rows", "logsumexp", row_logsumexp, _linear, ("bf16",), VOCABULARY),
    )


DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "int8": torch.int8, "fp8": FP8,
}  # fmt: skip
PARTS = ("square", "llm", "thin", "epilogue", "int8", "fp8", "long", "odd", "prologue", "pair", "batch", "rows")


__all__ = ["BATCH", "DTYPES", "LONG", "PARTS", "Case", "Shape", "cases", "product"]
