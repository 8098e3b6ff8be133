"""Dtypes: what values are computed in, and how results are rounded to storage."""

from __future__ import annotations

import torch

FLOAT8 = (torch.float8_e5m2, torch.float8_e4m3fn)
COMPUTE_DTYPE = dict.fromkeys((torch.bfloat16, torch.float16, *FLOAT8), torch.float32)


def compute_dtype(storage: torch.dtype) -> torch.dtype:
    """The dtype in which values of a tensor of dtype `storage` are computed."""
    return COMPUTE_DTYPE.get(storage, storage)


ROUNDING = {
    torch.float8_e5m2: "round_e5m2", torch.float8_e4m3fn: "round_e4m3", torch.bfloat16: "round_bf16", torch.float16: "round_f16",
}  # fmt: skip
"""The operation that rounds a computed value to a dtype narrower than its compute dtype, from coarsest to finest."""
