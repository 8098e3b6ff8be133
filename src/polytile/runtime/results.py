"""Results of the library in the memory layout that a program planned for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def laid_out(result: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """`result` as a tensor of this layout (strides in elements) that fills a storage of its own: itself where it is one, else a
    copy."""
    shape, steps = tuple(sizes), tuple(strides)
    if result.dtype == dtype and result.shape == shape and result.stride() == steps:
        extent = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if result.untyped_storage().nbytes() == extent * result.element_size() and not result.is_neg():
            return result
    return torch.empty_strided(shape, steps, dtype=dtype, device=result.device).copy_(result.reshape(shape))
