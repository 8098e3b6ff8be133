"""Test tensors with the values at which operators differ: signs, zeros, extremes, NaN and infinities."""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
ALL = (*FLOATS, *INTEGERS, torch.bool)

_SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    3.5,
    -2.5,
    float("inf"),
    -float("inf"),
    float("nan"),
    1e-3,
    60.0,
    -60.0,
]


def numbers(dtype: torch.dtype, *shape: int, special: bool = True) -> torch.Tensor:
    """Random numbers of type `dtype`; floating-point ones start with the special values, integers with extremes."""
    count = 1
    for n in shape:
        count *= n
    if dtype == torch.bool:
        return (torch.arange(count) * 7 % 3 == 0).reshape(shape)
    if not dtype.is_floating_point:
        low, high = (0, 255) if dtype == torch.uint8 else (-9, 9)
        values = torch.randint(low, high + 1, (count,), dtype=dtype)
        edges = [0, 1, 255, 254] if dtype == torch.uint8 else [0, 1, -1, 2, -2]
        return _with_head(values, edges, special).reshape(shape)
    values = (torch.randn(count, dtype=torch.float64) * 3).to(dtype)
    return _with_head(values, _SPECIAL, special).reshape(shape)


def _with_head(values: torch.Tensor, head: list[float] | list[int], wanted: bool) -> torch.Tensor:
    n = min(len(head), len(values)) if wanted else 0
    if n:
        values[:n] = torch.tensor(head[:n], dtype=values.dtype)
    return values
