"""The scales of a product's operands by blocks, among its flat arguments: the tensors SA and SB, which follow A and B, and their
strides, which come last.

SA is one scale for so many rows of A by SCALED_ALONG_K elements along k; SB for SCALED_ALONG_K elements along k by so many
columns of B. Both counts round up: the last scale of a row may serve fewer elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from polytile.ir.program import SCALED_ALONG_K

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

NAMES = ("SA", "SB")
SIZES = ("sa_stride_m", "sa_stride_k", "sb_stride_k", "sb_stride_n")


def shapes(kernel: GemmKernel, size: Mapping[str, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, along k) of SA and (along k, columns) of SB."""
    assert kernel.scales is not None
    rows, columns = kernel.scales
    along = -(-size["K"] // SCALED_ALONG_K)
    return (-(-size["M"] // rows), along), (along, -(-size["N"] // columns))


def dense_strides(kernel: GemmKernel, size: Mapping[str, int]) -> dict[str, int]:
    """Strides as the library has them: scales of single rows and columns next to each other, of blocks those along k."""
    assert kernel.scales is not None
    (rows, along), (_, columns) = shapes(kernel, size)
    a = (1, rows) if kernel.scales[0] == 1 else (along, 1)
    b = (columns, 1) if kernel.scales[1] == 1 else (1, along)
    return dict(zip(SIZES, (*a, *b), strict=True))


def elements(kernel: GemmKernel, name: str, size: Mapping[str, int]) -> int:
    """Elements from the first to the last of SA or SB."""
    number = NAMES.index(name)
    strides = [size[stride] for stride in SIZES[2 * number : 2 * number + 2]]
    return 1 + sum(max(0, n - 1) * stride for n, stride in zip(shapes(kernel, size)[number], strides, strict=True))


def views(kernel: GemmKernel, named: Mapping[str, torch.Tensor], size: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """SA and SB as strided (1, ., .) views."""
    by_name = {}
    for number, (name, shape) in enumerate(zip(NAMES, shapes(kernel, size), strict=True)):
        strides = [size[stride] for stride in SIZES[2 * number : 2 * number + 2]]
        by_name[name] = named[name].as_strided((1, *shape), (0, *strides), named[name].storage_offset())
    return by_name
