"""Split-K by the library: a product with few blocks and a long K as a batch of products over parts of K, whose results a second
kernel adds up. For products that the library's own heuristic does not split.

    A[64, 65536] · B[65536, 64]   →   16 products A[64, 4096] · B[4096, 64], float32, and their sum in order

The parts are views of the operands: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from polytile.candidates.inner_kernel import InnerKernel
from polytile.candidates.library.matmul import MatmulLibrary
from polytile.problem import Config, digest
from polytile.runtime.target import Target

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

PARTS = (4, 16, 64)
SHORTEST = 256
"""Elements along k that a part has at least."""
LONG = 4
"""Times M and N that K is, at least."""
LARGEST_SCRATCH = 64 << 20
"""Bytes that the parts' products may take."""


class SplitKLibrary(MatmulLibrary):
    """`torch.bmm` over parts of K into float32, and `torch.sum` of the parts."""

    origin = "split_k"

    def __init__(
        self, kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device, parts: int
    ) -> None:
        super().__init__(kernel, unfused, target)
        self.parts, self.name, self.config = parts, f"aten split_k {parts}", Config.of(parts=parts)

    @cached_property
    def source_hash(self) -> str:
        return digest(f"aten {torch.__version__} {self.parts} parts {self.kernel.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether K is long and can be split into equal parts that are long too. 16-bit operands need a library that can leave
        float32 results, as a GPU's can."""
        dtype, batch, m, n, k = self.kernel.in_dtype, *(sizes[name] for name in ("batch", "M", "N", "K"))
        able = dtype == torch.float32 or (dtype.itemsize == 2 and self.target is not None and self.target.type == "cuda")
        long = k % self.parts == 0 and k >= self.parts * SHORTEST and k >= LONG * max(m, n)
        return able and batch == 1 and long and 0 < 4 * self.parts * m * n <= LARGEST_SCRATCH

    def cost(self, sizes: Mapping[str, int]) -> float:
        """The batched product, and the parts' results written to and read from the cache once more."""
        assert self.target is not None
        device = Target.of(self.target).facts
        again = 2 * 4 * self.parts * sizes["M"] * sizes["N"]
        batched = {**sizes, "batch": self.parts, "K": sizes["K"] // self.parts}
        return super().cost(batched) + device.launch_seconds + again / device.l2_bandwidth

    def _into(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, flat: bool) -> None:
        if out.dtype == torch.float32:
            torch.sum(self._products(a, b), 0, out=out[0])
        else:
            out[0].copy_(self._products(a, b).sum(0))

    def _product(self, a: torch.Tensor, b: torch.Tensor, flat: bool) -> torch.Tensor:
        return self._products(a, b).sum(0).to(self.kernel.product_storage)

    def _products(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(parts, M, N) in float32."""
        left = a[0].unflatten(1, (self.parts, -1)).transpose(0, 1)
        right = b[0].unflatten(0, (self.parts, -1))
        return torch.bmm(left, right) if a.dtype == torch.float32 else torch.bmm(left, right, out_dtype=torch.float32)


def candidates(
    kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device
) -> tuple[SplitKLibrary, ...]:
    """A candidate for each number of parts."""
    return tuple(SplitKLibrary(kernel, unfused, target, parts) for parts in PARTS)
