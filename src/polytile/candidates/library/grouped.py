"""ATen's grouped product as a candidate."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from polytile.candidates.entries import PythonEntry
from polytile.candidates.library.matmul import CALL, MatmulLibrary
from polytile.ir.products import grouped_product
from polytile.matmul.gemm_kernel import ENDS
from polytile.runtime.target import Target


class GroupedLibrary(MatmulLibrary):
    """`torch._grouped_mm` where a GPU's takes the type, else a product a group. Rows beyond the last group, which ATen leaves
    uninitialised, become 0."""

    @property
    def at_once(self) -> bool:
        """Whether one call of the library does all groups, and never waits for their sizes."""
        return self.target is not None and self.target.type == "cuda" and self.kernel.in_dtype == torch.bfloat16

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """ATen's kernels for all groups at once need rows whose distance is a multiple of 16 bytes."""
        return not self.at_once or ("any" not in self.kernel.layouts and not self.kernel.misaligned(sizes))

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Predicted seconds of this many equal products."""
        calls = 0.0 if self.at_once else (sizes["batch"] - 1) * self._call_seconds
        return super().cost(self.kernel.average(sizes)) + calls

    @property
    def _call_seconds(self) -> float:
        return CALL if self.target is None else Target.of(self.target).facts.launch_seconds

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=self.at_once)

    def _multiply_named(self, named: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """The product (1, m, n), or (groups, m, n) if groups divide k."""
        a, b, ends = (named[name] for name in ("A", "B", ENDS))
        axis = self.kernel.spec.grouped
        if not self.at_once:
            return grouped_product(a, b, ends, axis, out)
        product = torch._grouped_mm(a[0], b if axis == "m" else b[0], offs=ends)
        out = product.new_empty((1, *product.shape) if axis == "m" else product.shape) if out is None else out
        if axis == "k":
            return out.copy_(product)
        covered = torch.arange(len(product), device=ends.device) < ends[-1]
        return torch.where(covered[:, None], product, product.new_zeros(()), out=out[0])[None]
