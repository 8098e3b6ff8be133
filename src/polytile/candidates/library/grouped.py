"""ATen's grouped product as a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from polytile.candidates.entries import PythonEntry
from polytile.candidates.library.matmul import CALL, MatmulLibrary
from polytile.ir.products import grouped_product
from polytile.matmul.gemm_kernel import ENDS, GemmKernel
from polytile.runtime.target import Target


def at_once(kernel: GemmKernel, target: torch.device | None) -> bool:
    """Whether one call of the library does all groups, and never waits for their sizes."""
    return target is not None and target.type == "cuda" and kernel.in_dtype == torch.bfloat16


class GroupedLibrary(MatmulLibrary):
    """`torch._grouped_mm` where a GPU's takes the type, else a product a group. Rows beyond the last group, which ATen leaves
    uninitialised, become 0: for the kernel that writes the result after `torch._grouped_mm` they are 0 already."""

    @property
    def at_once(self) -> bool:
        return at_once(self.kernel, self.target)

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
        """The product (1, m, n), (m, n) for the kernel after it, or (groups, m, n) if groups divide k."""
        a, b, ends = (named[name] for name in ("A", "B", ENDS))
        axis = self.kernel.spec.grouped
        if not self.at_once:
            return grouped_product(a, b, ends, axis, out)
        product = torch._grouped_mm(a[0], b if axis == "m" else b[0], offs=ends)
        return product.contiguous() if out is None else out.copy_(product)  # ATen may pad rows

    def _epilogue_tensors(self, tensors: Sequence[Any]) -> Sequence[Any]:
        last = [tensors[[t.name for t in self.kernel.tensors].index(ENDS)][-1:]] if self.kernel.spec.grouped == "m" else []
        return [*last, *super()._epilogue_tensors(tensors)]

    def _epilogue_ints(self, ints: Sequence[Any]) -> Sequence[Any]:
        if self.kernel.epilogue is not None or self.unfused is None:
            return super()._epilogue_ints(ints)
        named = dict(zip(self.kernel.size_names, ints, strict=True))
        return [named[name] for name in self.unfused.spec.size_names]
