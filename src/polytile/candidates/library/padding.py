"""Products of padded copies, for operands whose row stride is not a multiple of 16 bytes. The library's kernels load such
operands element by element, which took 5 times as long for 16-bit types on an H100. Copying is part of what is measured.

    A[300, 501] · B[501, 700]   →   the first 300 rows and 700 columns of A'[300, 504] · B'[504, 704]
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from polytile.candidates.library.matmul import MatmulLibrary
from polytile.runtime.target import Target

BYTES = 16
"""The widest load in bytes: the row strides of padded operands are a multiple of it."""


class PaddedLibrary(MatmulLibrary):
    """`torch.bmm` of copies whose rows in memory are multiples of 16 bytes. Along k the copies end in zeros; along m and n the
    padding is cut off the result."""

    name = "aten padded"
    origin = "padding"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether padding changes an operand, and its type is one for which that pays."""
        able = self.target is not None and self.kernel.in_dtype.is_floating_point and self.kernel.in_dtype.itemsize == 2
        return able and math.prod(sizes[n] for n in ("batch", "M", "N", "K")) > 0 and self.kernel.misaligned(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        """The product at padded sizes, and one more read and write of each operand and of the result."""
        assert self.target is not None
        device, size = Target.of(self.target).facts, self.kernel.in_dtype.itemsize
        batch, m, n, k = (sizes[name] for name in ("batch", "M", "N", "K"))
        padded = {"batch": batch, "M": self._up(m), "N": self._up(n), "K": self._up(k)}
        copied = 2 * size * batch * (m * k + k * n + m * n)
        again = 2 * size * batch * m * n if self.unfused else 0
        launches = (5 if self.unfused else 4) * device.launch_seconds
        return self.product_seconds(padded, device) + (copied + again) / device.bandwidth + launches

    def _up(self, size: int) -> int:
        step = BYTES // self.kernel.in_dtype.itemsize
        return -(-size // step) * step

    def _into(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, flat: bool) -> None:
        out.copy_(self._padded(a, b)[:, : out.shape[1], : out.shape[2]])

    def _product(self, a: torch.Tensor, b: torch.Tensor, flat: bool) -> torch.Tensor:
        product = self._padded(a, b)[:, : a.shape[1], : b.shape[2]].contiguous()
        return product[0] if flat else product

    def _padded(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The product of the copies."""
        m, n, k = (self._up(size) for size in (a.shape[1], b.shape[2], a.shape[2]))
        rows = m if a.stride(1) == 1 else a.shape[1]
        return torch.bmm(self._copy(a, rows, k, 2), self._copy(b, k, n, 1))

    @staticmethod
    def _copy(operand: torch.Tensor, rows: int, columns: int, along_k: int) -> torch.Tensor:
        """`operand` in memory of the given sizes and of its own order, zero beyond its end along k."""
        batch, height, width = operand.shape
        if operand.stride(1) == 1 and width > 1:
            padded = operand.new_empty(batch, columns, rows).transpose(1, 2)
        else:
            padded = operand.new_empty(batch, rows, columns)
        padded[:, :height, :width].copy_(operand)
        padded.narrow(along_k, operand.shape[along_k], padded.shape[along_k] - operand.shape[along_k]).zero_()
        return padded
