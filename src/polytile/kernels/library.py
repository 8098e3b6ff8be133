"""Library calls as candidates: ATen's matmul, with the epilogue as a second kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from polytile.ir import evaluate
from polytile.kernels.candidate import PythonEntry
from polytile.kernels.canonical import LoopKernel
from polytile.problem import Config, digest

if TYPE_CHECKING:
    from polytile.kernels.templates import GemmKernel

RATE, BYTES, CALL = 80e9, 12e9, 3e-6  # multiply-adds/s and bytes/s of one core, s of a call: for ranking alone


class MatmulLibrary:
    """`torch.mm` or `torch.bmm` into the output, or into a scratch product that `unfused`, the epilogue's MultiKernel, reads."""

    name = "aten"
    origin = "library"
    config = Config()

    def __init__(
        self, kernel: GemmKernel, unfused: Callable[..., None] | None, target: torch.device | None = None
    ) -> None:
        self.kernel, self.unfused, self.target = kernel, unfused, target

    @cached_property
    def source_hash(self) -> str:
        return digest(f"aten {torch.__version__} {self.kernel.text}")

    source_path = ""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Products of 8-bit types have limits of their own: rows by k, columns by k, sizes that 16 divides."""
        if self.kernel.in_dtype.itemsize > 1 or self.target is None:
            return True
        spec = self.kernel.spec
        sizes_fit = sizes["batch"] == 1 and sizes["K"] % 16 == 0 and sizes["N"] % 16 == 0 and sizes["M"] > 16
        return sizes_fit and spec.a_layout == "k" and spec.b_layout == "k"

    def cost(self, sizes: Mapping[str, int]) -> float:
        batch, m, n, k = (sizes[name] for name in ("batch", "M", "N", "K"))
        if self.target is not None:
            return self._gpu_cost(sizes, self.target)
        element = self.kernel.in_dtype.itemsize
        threads = torch.get_num_threads()
        compute = batch * m * n * k / (RATE * threads)
        memory = batch * (m * k + k * n + m * n) * element / (BYTES * min(threads, 4))
        again = 2 * batch * m * n * element / (BYTES * min(threads, 4)) if self.unfused else 0.0
        return max(compute, memory) + again + CALL * (2 if self.unfused else 1)

    def _gpu_cost(self, sizes: Mapping[str, int], target: torch.device) -> float:
        from polytile.kernels.triton.gemm import library_prior
        from polytile.kernels.triton.gemm.candidates import device_of, kind_of

        device, spec = device_of(target), self.kernel.spec
        misaligned = self.kernel.in_dtype.itemsize == 2 and self.kernel.misaligned(sizes)
        along_k = spec.a_layout == "k", spec.b_layout == "k"
        product = library_prior.cost(kind_of(self.kernel), sizes, device, along_k, misaligned)
        again = 2 * math.prod(sizes[name] for name in ("batch", "M", "N")) * self.kernel.in_dtype.itemsize
        return product + (device.launch_seconds + again / device.bandwidth if self.unfused else 0.0)

    def prepare(self) -> None:
        """The product needs nothing; the first candidate of the epilogue's kernel compiles beside the others."""
        for candidate in getattr(self.unfused, "candidates", ())[:1]:
            candidate.prepare()

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=True)

    def _call(self, *args: Any) -> None:
        from polytile.kernels.templates import operands

        named, _ = operands(self.kernel, args)
        a, b = (named[name].to(self.kernel.in_dtype) for name in ("A", "B"))
        flat = a.shape[0] == 1
        if self.unfused is None:
            self._into(a, b, named["C"], flat)
            return
        product = self._product(a, b, flat)
        first, count = len(self.kernel.tensors), len(self.kernel.leading)
        self.unfused(product, *args[2:first], *args[first + count :])

    def _into(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, flat: bool) -> None:
        if a.dtype == torch.int8 and out.dtype == torch.int32:
            torch._int_mm(a[0], b[0], out=out[0])
        elif a.dtype != out.dtype:
            out.copy_(self._product(a, b, flat))
        elif flat:
            torch.mm(a[0], b[0], out=out[0])
        else:
            torch.bmm(a, b, out=out)

    def _product(self, a: torch.Tensor, b: torch.Tensor, flat: bool) -> torch.Tensor:
        """The product in the type in which the library leaves it: int32 for int8, float32 for 8-bit floats."""
        if a.dtype == torch.int8:
            return torch._int_mm(a[0], b[0])
        if a.dtype.itemsize == 1:
            one = torch.ones((), device=a.device)
            return torch._scaled_mm(a[0], b[0], one, one, out_dtype=torch.float32)
        return torch.mm(a[0], b[0]) if flat else torch.bmm(a, b)


class SumLibrary(MatmulLibrary):
    """Of two products that are added up: the library's second product, and its first one with that added to it."""

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Both products; the operands of the second as those of the first."""
        return super().cost(sizes) + super().cost({**sizes, "K": sizes["L"]})

    def _call(self, *args: Any) -> None:
        from polytile.kernels.templates import operands

        named, ints = operands(self.kernel, args)
        a, b, p, q = (named[name] for name in "ABPQ")
        if self.unfused is None:
            torch.baddbmm(torch.bmm(p, q), a, b, out=named["C"])
            return
        total = torch.baddbmm(torch.bmm(p, q), a, b)
        self.unfused(total, *args[4 : len(self.kernel.tensors)], *ints)


class InterpretedLoop:
    """The reference interpreter as the candidate of last resort: torch operators on index grids, right and slow. It runs only
    where every generated kernel failed, or while they compile and nobody may wait; `explain()` and the log then say so.
    `reason` says why there are no others, if so."""

    name = "interpreted"
    origin = "reference"
    config = Config()
    source_path = ""
    reason = ""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel

    @cached_property
    def source_hash(self) -> str:
        return digest(f"interpreted {torch.__version__} {self.kernel.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return True

    def cost(self, sizes: Mapping[str, int]) -> float:
        return 1.0

    def prepare(self) -> None:
        """Nothing to make."""

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call)

    def _call(self, *args: Any) -> None:
        tensors = dict(zip([t.name for t in self.kernel.tensors], args, strict=False))
        values = dict(zip(self.kernel.symbols, args[len(self.kernel.tensors) :], strict=True))
        evaluate.run_loop(self.kernel.loop, tensors, values, None)
