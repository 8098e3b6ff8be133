"""ATen's product by weights of 4 bits that it has packed for GPUs, as one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from polytile.candidates.library.matmul import MatmulLibrary
from polytile.candidates.sources import ProductRequest
from polytile.ir.template import PackedInt4
from polytile.matmul.gemm_kernel import GemmKernel

FIRST, FURTHER = 0.2e-12, 0.065e-12
"""Seconds per element of the weight, for a call and for each row of A: the operator reads the weight once for every 16 rows. It
took 20, 72, 271 and 4153 µs at 1, 16, 64 and 1024 rows by 4096x14336 on an H200."""


class PackedInt4Library(MatmulLibrary):
    """`torch._weight_int4pack_mm`, and the epilogue as a kernel of its own."""

    name = "aten packed int4"

    def __init__(self, asked: ProductRequest, packed: PackedInt4) -> None:
        super().__init__(asked.kernel, asked.unfused, asked.target)
        self.packed = packed
        types = {tensor.dtype: tensor.name for tensor in asked.kernel.inputs[1]}
        self._words, self._scales = types[torch.int32], types[torch.bfloat16]

    def product_seconds(self, sizes: Mapping[str, int], device: Any, misaligned: bool = False) -> float:
        """Predicted seconds of the call."""
        by_element = FIRST + FURTHER * sizes["M"]
        return float(device.launch_seconds + by_element * sizes["N"] * sizes["K"])

    def _multiply_named(self, named: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        a, (tiles, group) = named["A"][0], (self.packed.tiles, self.packed.group)
        words, scales = (named[name].flatten() for name in (self._words, self._scales))
        (_, k), n = a.shape, words.numel() * 8 // a.shape[1]
        shaped = words.view(n // 8, k // (16 * tiles), 32, tiles // 2), scales.view(k // group, n, 2)
        product = torch._weight_int4pack_mm(a.contiguous(), shaped[0], group, shaped[1])[None]
        return product if out is None else out.copy_(product)


def candidates(asked: ProductRequest) -> list[PackedInt4Library]:
    """The library's call where the product is one by such weights, on a GPU."""
    kernel: GemmKernel = asked.kernel
    if kernel.int4 is None or kernel.prologues[0] is not None or asked.target.type != "cuda":
        return []
    return [PackedInt4Library(asked, kernel.int4)]
