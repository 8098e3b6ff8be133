"""ATen's matmul as a candidate, with the epilogue as a second kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.candidates.inner_kernel import InnerKernel, prepare_first
from polytile.candidates.product_terms import work_terms
from polytile.ir.products import scaled_operand
from polytile.matmul import scales
from polytile.matmul.gemm_args import operands
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.problem import Config, digest
from polytile.runtime.target import Target

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

RATE, BYTES, CALL = 80e9, 12e9, 3e-6  # multiply-adds/s and bytes/s of one core, s of a call: for ranking alone
RATES = {torch.bfloat16: 230e9, torch.int8: 470e9}
"""In place of RATE for types that oneDNN has instructions for (Zen 5, 1024³). Where it has none, its products are several times
slower; as predictions only decide ties, that does no harm."""


class MatmulLibrary(Candidate):
    """`torch.mm` or `torch.bmm` into the output, or into a scratch product that `unfused`, the epilogue's MultiKernel, reads."""

    name = "aten"
    origin = "library"
    config = Config()
    scales_rows = False
    """Whether the product itself is scaled by rows and columns."""

    def __init__(
        self, kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device | None = None
    ) -> None:
        self.kernel, self.unfused, self.target = kernel, unfused, target

    @cached_property
    def source_hash(self) -> str:
        return digest(f"{self.name} {torch.__version__} {self.kernel.text}")

    @property
    def second_kernel(self) -> bool:
        """Whether the epilogue is a kernel of its own."""
        return self.unfused is not None

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Products of 8-bit types need both operands dense along k, and K and N divisible by 16, on a GPU. A CPU's products of
        16-bit types are rounded to these, which is too coarse where float32 is stored."""
        if self.target is None:
            exact = self.unfused is None and self.kernel.spec.out_dtype == "float32"
            return not (exact and self.kernel.in_dtype.itemsize == 2)
        if self.kernel.in_dtype.itemsize > 1:
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
        compute = batch * m * n * k / (RATES.get(self.kernel.in_dtype, RATE) * threads)
        memory = batch * (m * k + k * n + m * n) * element / (BYTES * min(threads, 4))
        again = 2 * batch * m * n * element / (BYTES * min(threads, 4)) if self.unfused else 0.0
        return max(compute, memory) + again + CALL * (2 if self.unfused else 1)

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """What the product is: nobody says what the library's time is made of."""
        return work_terms(self.kernel, sizes)

    def _gpu_cost(self, sizes: Mapping[str, int], target: torch.device) -> float:
        device = Target.of(target).facts
        product = self.product_seconds(sizes, device, self.kernel.in_dtype.itemsize == 2 and self.kernel.misaligned(sizes))
        element = 4 if self.kernel.in_dtype.itemsize == 1 else self.kernel.in_dtype.itemsize  # sums of bytes have 32 bits
        again = 2 * math.prod(sizes[name] for name in ("batch", "M", "N")) * element
        return product + (device.launch_seconds + again / device.bandwidth if self.second_kernel else 0.0)

    def product_seconds(self, sizes: Mapping[str, int], device: DeviceFacts, misaligned: bool = False) -> float:
        """What the library's product alone is expected to take on a GPU."""
        from polytile.cost import library_matmul as library_prior
        from polytile.matmul.triton.configs import Kind

        along_k = self.kernel.spec.a_layout == "k", self.kernel.spec.b_layout == "k"
        return library_prior.cost(Kind.of(self.kernel), sizes, device, along_k, misaligned, self.scales_rows)

    def prepare(self) -> None:
        """Starts compiling the first candidate of the epilogue's kernel; the product needs nothing."""
        if self.unfused is not None:
            prepare_first(self.unfused)

    def inner_calls(self, ints: Sequence[int]) -> Iterable[tuple[InnerKernel, Sequence[int]]]:
        if self.unfused is not None and self.second_kernel:
            yield self.unfused, self._epilogue_ints(ints)

    def _epilogue_ints(self, ints: Sequence[Any]) -> Sequence[Any]:
        """The integers of the epilogue's kernel, among those of the product."""
        first = len(self.kernel.leading)
        return ints[first : first + len(self.kernel.symbols)]

    def entry(self) -> NativeEntry | PythonEntry:
        return PythonEntry(self._call, recordable=True)

    def _call(self, *args: Any) -> None:
        named, _ = operands(self.kernel, args)
        if self.unfused is None:
            self._multiply_named(named, named["C"])
        else:
            self._finish(self._multiply_named(named, None), args)

    def _multiply_named(self, named: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """The product of these operands, in `out` where that is given."""
        a, b = (named[name].to(self.kernel.in_dtype) for name in ("A", "B"))
        flat = a.shape[0] == 1
        if out is None:
            return self._product(a, b, flat)
        self._into(a, b, out, flat)
        return out

    def _finish(self, product: torch.Tensor, args: Sequence[Any]) -> None:
        """The epilogue on the library's product."""
        assert self.unfused is not None
        count = len(self.kernel.tensors)
        self.unfused(product, *self._epilogue_tensors(args[:count]), *self._epilogue_ints(args[count:]))

    def _epilogue_tensors(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The tensors of the epilogue's kernel after the product."""
        end = len(tensors) - self.kernel.packed
        return tensors[end - len(self.kernel.outer) : end]

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


class DualMatmulLibrary(MatmulLibrary):
    """Dual matmul: the library's second product, then its first one with that added to it."""

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Both products, as if the operands of the second lay in memory as those of the first."""
        return super().cost(sizes) + super().cost({**sizes, "K": sizes["L"]})

    def _multiply_named(self, named: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        return torch.baddbmm(torch.bmm(named["P"], named["Q"]), named["A"], named["B"], out=out)


class ScaledLibrary(MatmulLibrary):
    """ATen's product of 8-bit floats with block-wise scales. Where ATen has no such product, or not for scales in this layout,
    its first run fails and it takes no part."""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self.target is not None and self.target.type == "cuda" and super().valid(sizes)

    def _multiply_named(self, named: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        a, b, scale_a, scale_b = (named[name][0] for name in ("A", "B", "SA", "SB"))
        into = None if out is None else out[0]
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=self.kernel.product_dtype, out=into)


class DequantisedLibrary(MatmulLibrary):
    """ATen's product on a copy of B that is converted and scaled first."""

    def _multiply_named(self, named: Mapping[str, torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        b, *factors = (named[name].to(self.kernel.in_dtype) for name in ("B", "SB", "ZB") if name in named)
        converted = scaled_operand(b, scales.blocks(self.kernel)["SB"], *factors)
        return super()._multiply_named({"A": named["A"], "B": converted}, out)
