"""Block scales of a product's operands among its flat arguments: the tensors SA, SB and ZB that are present follow A and B, and
their strides come last.

SA has one scale per block of rows of A by elements along k; SB has one per block of elements along k by columns of B. Block
counts round up, so the last block may be partial. ZB has zero points, which are subtracted from B before scaling. If only B is
scaled, its scales and zero points are row-major.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from polytile.ir.template import Scales

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

Blocks = tuple[int, int]
"""How many rows and columns of an operand share a scale."""

AXES = {"SA": ("M", "K"), "SB": ("K", "N"), "ZB": ("K", "N")}
STRIDES = {name: tuple(f"{name.lower()}_stride_{axis.lower()}" for axis in axes) for name, axes in AXES.items()}


def blocks_of(scales: tuple[Scales | None, Scales]) -> tuple[Blocks | None, Blocks]:
    """The blocks of A, if it has scales, and of B."""
    a, b = scales
    return (a.rows, a.along) if a is not None else None, (b.along, b.rows)


def blocks(kernel: GemmKernel) -> dict[str, Blocks]:
    """The blocks of the scales that the kernel has, by name."""
    if kernel.scales is None:
        return {}
    a, b = kernel.scales
    named = {"SA": a, "SB": b, "ZB": b if kernel.spec.zeros else None}
    return {name: own for name, own in named.items() if own is not None}


def size_names(kernel: GemmKernel) -> tuple[str, ...]:
    """The names of the strides of scales by blocks, which are integers of the kernel."""
    return tuple(stride for name in blocks(kernel) for stride in STRIDES[name])


def shape(kernel: GemmKernel, name: str, size: Mapping[str, int]) -> tuple[int, int]:
    """Rows and columns of a tensor of scales."""
    down, across = (-(-size[axis] // by) for axis, by in zip(AXES[name], blocks(kernel)[name], strict=True))
    return down, across


def dense_strides(kernel: GemmKernel, size: Mapping[str, int]) -> dict[str, int]:
    """Strides as the library lays scales out: per-row and per-column scales are contiguous, block scales are contiguous along
    k."""
    strides: dict[str, int] = {}
    for name, (down, across) in blocks(kernel).items():
        rows, columns = shape(kernel, name, size)
        by_row = down > 1 if name == "SA" else across == 1
        strides |= dict(zip(STRIDES[name], (columns, 1) if by_row else (1, rows), strict=True))
    return strides


def elements(kernel: GemmKernel, name: str, size: Mapping[str, int]) -> int:
    """Number of elements from the first to the last of a tensor of scales."""
    strides = [size[stride] for stride in STRIDES[name]]
    return 1 + sum(max(0, n - 1) * stride for n, stride in zip(shape(kernel, name, size), strides, strict=True))


def views(kernel: GemmKernel, named: Mapping[str, torch.Tensor], size: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """The tensors of scales that are present, as strided (1, ., .) views."""
    by_name = {}
    for name in blocks(kernel):
        strides = [size[stride] for stride in STRIDES[name]]
        by_name[name] = named[name].as_strided((1, *shape(kernel, name, size)), (0, *strides), named[name].storage_offset())
    return by_name
