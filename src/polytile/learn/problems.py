"""Problems for collecting measurements: for each operation an endless sequence of sizes, reproducible from a seed.

Sizes are drawn in four ways in turn: any number, a power of two, a multiple of a power of two from 8 to 128, and an odd number,
each log-uniform in its range. Problem n does not depend on how many are requested, so that collecting can resume where it
stopped.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Sizes = Mapping[str, int]
Args = tuple[Any, ...]

WAYS = ("any", "power", "multiple", "odd")
STEPS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Operation:
    """A function to compile.

    Attributes
    ----------
    family
        The family of its problems.
    make
        `make(sizes, dtype, device)` returns its arguments.
    ranges
        Minimum and maximum of each size.
    work
        The work, which must not exceed a device's limit: multiply-adds of products, elements of loops.
    """

    name: str
    family: str
    run: Callable[..., Any]
    make: Callable[[Sizes, torch.dtype, torch.device], Args]
    ranges: Mapping[str, tuple[int, int]]
    work: Callable[[Sizes], int]

    def sizes(self, number: int, seed: int, limit: int) -> dict[str, int]:
        """The sizes of problem `number`, with at most `limit` work."""
        draw, way = random.Random(f"{self.name} {seed} {number}"), WAYS[number % len(WAYS)]
        while True:
            found = {name: _drawn(draw, way, low, high) for name, (low, high) in self.ranges.items()}
            if self.work(found) <= limit:
                return found


def _drawn(draw: random.Random, way: str, low: int, high: int) -> int:
    size = round(math.exp(draw.uniform(math.log(low), math.log(high))))
    if way == "power":
        size = 1 << round(math.log2(size))
    elif way == "multiple":
        step = draw.choice(STEPS)
        size = max(1, round(size / step)) * step
    elif way == "odd":
        size |= 1
    return min(max(size, low), high)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _mm(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def _linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def _addmm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def _layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w.t())


def _mm_gelu(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x @ y)


def _mixed_mm(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.to(x.dtype)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _gelu_mul(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x) * y


def _row_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def _column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def _bias_gelu(x: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b)


def _residual_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    both = x + y
    return both, F.layer_norm(both, (x.shape[-1],), w, b)


def _cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none")


def _standardise(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, 0, correction=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def _transpose(x: Tensor) -> Tensor:
    return torch.relu(x).t().contiguous()


def _cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = m + 0.1 * (g - m)
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.abs().sqrt() + 1e-8), m, v


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _operands(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    return _normal((s["M"], s["K"]), dtype, device), _normal((s["K"], s["N"]), dtype, device)


def _weights(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    return _normal((s["M"], s["K"]), dtype, device), _normal((s["N"], s["K"]), dtype, device)


def _with_bias(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    return (*_weights(s, dtype, device), _normal((s["N"],), dtype, device))


def _parameters(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    """Arguments of a module: on a CPU, a copy of the weights is packed ahead of calls."""
    x, *weights = _with_bias(s, dtype, device)
    return (x, *[torch.nn.Parameter(each) for each in weights])


def _batches(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    batch = s["batch"]
    return _normal((batch, s["M"], s["K"]), dtype, device), _normal((batch, s["K"], s["N"]), dtype, device)


def _mixed(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    weights = torch.randint(-128, 128, (s["K"], s["N"]), device=device, dtype=torch.int8)
    return _normal((s["M"], s["K"]), dtype, device), weights


def _matrix(count: int, *vectors: str) -> Callable[[Sizes, torch.dtype, torch.device], Args]:
    """`count` matrices of rows × columns, then vectors of the length of a row."""

    def make(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
        whole = [_normal((s["rows"], s["columns"]), dtype, device) for _ in range(count)]
        return (*whole, *[_normal((s["columns"],), dtype, device) for _ in vectors])

    return make


def _logits(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    logits = _normal((s["rows"], s["columns"]), dtype, device)
    return logits, torch.randint(s["columns"], (s["rows"],), device=device)


def _heads(s: Sizes, dtype: torch.dtype, device: torch.device) -> Args:
    q = (s["batch"], s["heads"], s["queries"], s["width"])
    k = (s["batch"], s["heads"], s["keys"], s["width"])
    return _normal(q, dtype, device), _normal(k, dtype, device), _normal(k, dtype, device)


def _product(s: Sizes) -> int:
    return math.prod(s.values())


PRODUCT = {"M": (1, 8192), "N": (16, 8192), "K": (16, 8192)}
BATCHED = {"batch": (2, 64), "M": (2, 1024), "N": (16, 1024), "K": (16, 1024)}
MATRIX = {"rows": (2, 1 << 17), "columns": (2, 1 << 17)}
ATTENTION = {"batch": (2, 8), "heads": (2, 32), "queries": (2, 4096), "keys": (16, 4096), "width": (32, 128)}

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("mm", "mm", _mm, _operands, PRODUCT, _product),
        Operation("linear", "mm", _linear, _weights, PRODUCT, _product),
        Operation("addmm", "mm", _addmm, _with_bias, PRODUCT, _product),
        Operation("layer", "mm", _layer, _parameters, PRODUCT, _product),
        Operation("bmm", "mm", _mm, _batches, BATCHED, _product),
        Operation("mm_gelu", "mm", _mm_gelu, _operands, PRODUCT, _product),
        Operation("mixed_mm", "mm", _mixed_mm, _mixed, PRODUCT, _product),
        Operation("softmax", "loop", _softmax, _matrix(1), MATRIX, _product),
        Operation("layer_norm", "loop", _layer_norm, _matrix(1, "weight", "bias"), MATRIX, _product),
        Operation("rms_norm", "loop", _rms_norm, _matrix(1, "weight"), MATRIX, _product),
        Operation("gelu_mul", "loop", _gelu_mul, _matrix(2), MATRIX, _product),
        Operation("row_sum", "loop", _row_sum, _matrix(1), MATRIX, _product),
        Operation("column_sum", "loop", _column_sum, _matrix(1), MATRIX, _product),
        Operation("bias_gelu", "loop", _bias_gelu, _matrix(1, "bias"), MATRIX, _product),
        Operation("residual_norm", "loop", _residual_norm, _matrix(2, "weight", "bias"), MATRIX, _product),
        Operation("cross_entropy", "loop", _cross_entropy, _logits, MATRIX, _product),
        Operation("standardise", "loop", _standardise, _matrix(1), MATRIX, _product),
        Operation("transpose", "loop", _transpose, _matrix(1), MATRIX, _product),
        Operation("cumsum", "loop", _cumsum, _matrix(1), MATRIX, _product),
        Operation("adam", "loop", _adam, _matrix(4), MATRIX, _product),
        Operation("attention", "attention", _attention, _heads, ATTENTION, _product),
    )
}

LIMITS: Mapping[tuple[str, str], int] = {
    ("mm", "cuda"): 1 << 34, ("loop", "cuda"): 1 << 25, ("attention", "cuda"): 1 << 34,
    ("mm", "cpu"): 1 << 28, ("loop", "cpu"): 1 << 22, ("attention", "cpu"): 1 << 28,
}  # fmt: skip
"""(family, device type) → maximum work of a problem."""
