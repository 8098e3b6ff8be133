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
Operand = Callable[[Sizes, torch.dtype, torch.device], Tensor]

WAYS = ("any", "power", "multiple", "odd")
STEPS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Operation:
    """A function to compile, the family of its problems, the minimum and maximum of each size, and what makes its arguments."""

    name: str
    family: str
    ranges: Mapping[str, tuple[int, int]]
    run: Callable[..., Any]
    operands: tuple[Operand, ...]

    def make(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        """Its arguments."""
        return tuple(operand(sizes, dtype, device) for operand in self.operands)

    @staticmethod
    def work(sizes: Sizes) -> int:
        """The work, which must not exceed a device's limit: multiply-adds of products, elements of loops."""
        return math.prod(sizes.values())

    def sizes(self, number: int, seed: int, limit: int) -> dict[str, int]:
        """The sizes of problem `number`, with at most `limit` work."""
        draw, way = random.Random(f"{self.name} {seed} {number}"), WAYS[number % len(WAYS)]
        while True:
            drawn = {name: _drawn(draw, way, low, high) for name, (low, high) in self.ranges.items()}
            if self.work(drawn) <= limit:
                return drawn


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


def _normal(*shape: str) -> Operand:
    return lambda sizes, dtype, device: torch.randn([sizes[name] for name in shape], device=device).to(dtype)


def _parameter(*shape: str) -> Operand:
    """One of a module: on a CPU, a copy of the weights is packed ahead of calls."""
    normal = _normal(*shape)
    return lambda sizes, dtype, device: torch.nn.Parameter(normal(sizes, dtype, device))


def _int8(*shape: str) -> Operand:
    return lambda sizes, _, device: torch.randint(-128, 128, [sizes[name] for name in shape], device=device, dtype=torch.int8)


def _classes(number: str, count: str) -> Operand:
    return lambda sizes, _, device: torch.randint(sizes[number], (sizes[count],), device=device)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _residual_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    both = x + y
    return both, F.layer_norm(both, (x.shape[-1],), w, b)


def _standardise(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, 0, correction=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = m + 0.1 * (g - m)
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.abs().sqrt() + 1e-8), m, v


PRODUCT = {"M": (1, 8192), "N": (16, 8192), "K": (16, 8192)}
BATCHED = {"batch": (2, 64), "M": (2, 1024), "N": (16, 1024), "K": (16, 1024)}
MATRIX = {"rows": (2, 1 << 17), "columns": (2, 1 << 17)}
ATTENTION = {"batch": (2, 8), "heads": (2, 32), "queries": (2, 4096), "keys": (16, 4096), "width": (32, 128)}

LEFT, RIGHT, WEIGHT, BIAS = _normal("M", "K"), _normal("K", "N"), _normal("N", "K"), _normal("N")
PARAMETERS = _parameter("N", "K"), _parameter("N")
WHOLE, ROW, CLASSES = _normal("rows", "columns"), _normal("columns"), _classes("columns", "rows")
QUERIES, KEYS = _normal("batch", "heads", "queries", "width"), _normal("batch", "heads", "keys", "width")

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("mm", "mm", PRODUCT, lambda x, y: x @ y, (LEFT, RIGHT)),
        Operation("linear", "mm", PRODUCT, lambda x, w: F.linear(x, w), (LEFT, WEIGHT)),
        Operation("addmm", "mm", PRODUCT, lambda x, w, b: F.linear(x, w, b), (LEFT, WEIGHT, BIAS)),
        Operation("layer", "mm", PRODUCT, lambda x, w, b: torch.addmm(b, x, w.t()), (LEFT, *PARAMETERS)),
        Operation("bmm", "mm", BATCHED, lambda x, y: x @ y, (_normal("batch", "M", "K"), _normal("batch", "K", "N"))),
        Operation("mm_gelu", "mm", PRODUCT, lambda x, y: F.gelu(x @ y), (LEFT, RIGHT)),
        Operation("mixed_mm", "mm", PRODUCT, lambda x, w: x @ w.to(x.dtype), (LEFT, _int8("K", "N"))),
        Operation("softmax", "loop", MATRIX, lambda x: torch.softmax(x, -1), (WHOLE,)),
        Operation("layer_norm", "loop", MATRIX, lambda x, w, b: F.layer_norm(x, w.shape, w, b), (WHOLE, ROW, ROW)),
        Operation("rms_norm", "loop", MATRIX, _rms_norm, (WHOLE, ROW)),
        Operation("gelu_mul", "loop", MATRIX, lambda x, y: F.gelu(x) * y, (WHOLE, WHOLE)),
        Operation("row_sum", "loop", MATRIX, lambda x: x.sum(-1), (WHOLE,)),
        Operation("column_sum", "loop", MATRIX, lambda x: x.sum(0), (WHOLE,)),
        Operation("bias_gelu", "loop", MATRIX, lambda x, b: F.gelu(x + b), (WHOLE, ROW)),
        Operation("residual_norm", "loop", MATRIX, _residual_norm, (WHOLE, WHOLE, ROW, ROW)),
        Operation("cross_entropy", "loop", MATRIX, lambda x, y: F.cross_entropy(x, y, reduction="none"), (WHOLE, CLASSES)),
        Operation("standardise", "loop", MATRIX, _standardise, (WHOLE,)),
        Operation("transpose", "loop", MATRIX, lambda x: torch.relu(x).t().contiguous(), (WHOLE,)),
        Operation("cumsum", "loop", MATRIX, lambda x: x.cumsum(-1), (WHOLE,)),
        Operation("adam", "loop", MATRIX, _adam, (WHOLE, WHOLE, WHOLE, WHOLE)),
        Operation("attention", "attention", ATTENTION, F.scaled_dot_product_attention, (QUERIES, KEYS, KEYS)),
    )
}

LIMITS: Mapping[tuple[str, str], int] = {
    ("mm", "cuda"): 1 << 34, ("loop", "cuda"): 1 << 25, ("attention", "cuda"): 1 << 34,
    ("mm", "cpu"): 1 << 28, ("loop", "cpu"): 1 << 22, ("attention", "cpu"): 1 << 28,
}  # fmt: skip
"""(family, device type) → maximum work of a problem."""
