"""The scales of a product's operands by blocks, among its flat arguments: the tensors SA, SB and ZB, as far as there are any,
which follow A and B, and their strides, which come last.

SA is one scale for so many rows of A by so many elements along k; SB for so many elements along k by so many columns of B. Both
counts round up: the last scale of a row may serve fewer elements. ZB has what is subtracted from B before that. The scales and
zeros of a B alone lie row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from polytile.ir.program import Scales

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

Blocks = tuple[int, int]
"""How many rows and columns of an operand share a scale."""

AXES = {"SA": ("M", "K"), "SB": ("K", "N"), "ZB": ("K", "N")}
STRIDES = {name: tuple(f"{name.lower()}_stride_{axis.lower()}" for axis in axes) for name, axes in AXES.items()}


def blocks_of(scales: tuple[Scales | None, Scales]) -> tuple[Blocks | None, Blocks]:
    """Of A, if it has scales, and of B."""
    a, b = scales
    return (a.rows, a.along) if a is not None else None, (b.along, b.rows)


def blocks(kernel: GemmKernel) -> dict[str, Blocks]:
    """By name, of the scales that the kernel has."""
    if kernel.scales is None:
        return {}
    a, b = kernel.scales
    named = {"SA": a, "SB": b, "ZB": b if kernel.spec.zeros else None}
    return {name: own for name, own in named.items() if own is not None}


def size_names(kernel: GemmKernel) -> tuple[str, ...]:
    return tuple(stride for name in blocks(kernel) for stride in STRIDES[name])


def shape(kernel: GemmKernel, name: str, size: Mapping[str, int]) -> tuple[int, int]:
    """Rows and columns of one of them."""
    down, across = (-(-size[axis] // by) for axis, by in zip(AXES[name], blocks(kernel)[name], strict=True))
    return down, across


def dense_strides(kernel: GemmKernel, size: Mapping[str, int]) -> dict[str, int]:
    """Strides as the library has them: scales of single rows and columns next to each other, of blocks those along k."""
    strides: dict[str, int] = {}
    for name, (down, across) in blocks(kernel).items():
        rows, columns = shape(kernel, name, size)
        by_row = down > 1 if name == "SA" else across == 1
        strides |= dict(zip(STRIDES[name], (columns, 1) if by_row else (1, rows), strict=True))
    return strides


def elements(kernel: GemmKernel, name: str, size: Mapping[str, int]) -> int:
    """Elements from the first to the last of one of them."""
    strides = [size[stride] for stride in STRIDES[name]]
    return 1 + sum(max(0, n - 1) * stride for n, stride in zip(shape(kernel, name, size), strides, strict=True))


def views(kernel: GemmKernel, named: Mapping[str, torch.Tensor], size: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Those that there are as strided (1, ., .) views."""
    by_name = {}
    for name in blocks(kernel):
        strides = [size[stride] for stride in STRIDES[name]]
        by_name[name] = named[name].as_strided((1, *shape(kernel, name, size)), (0, *strides), named[name].storage_offset())
    return by_name
