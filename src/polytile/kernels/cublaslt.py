"""Products by cuBLASLt's own proposals, each a candidate: "cublaslt 0" is what its heuristic puts first, "cublaslt 1" what it
puts second, at the very sizes of a call. ATen takes the first alone, and asks anew at every call.

The heuristic is a function of the sizes and of the library's version, which is part of the source hash: a candidate that won
in one process is the same algorithm in the next. Which algorithm that is stands in the measurement (`told`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from polytile.errors import DeviceError
from polytile.kernels.library import MatmulLibrary
from polytile.problem import Config, Scalar, digest
from polytile.runtime.cuda import cublaslt
from polytile.runtime.cuda.cublaslt import Algorithm, Matrix, Product

if TYPE_CHECKING:
    from polytile.kernels.templates import GemmKernel

log = logging.getLogger("polytile.kernels")

PROPOSALS = 6
"""How many of the heuristic's proposals are candidates."""
LATER = 0.02
"""How much longer, relatively, each proposal is expected to take than the one before."""
ALIGNMENT = 16
"""Bytes; no algorithm asks for more."""


@dataclass(frozen=True)
class Layout:
    """Where (batch, rows, columns) of an operand lie: rows and columns, the strides of all three axes, and what the address is
    a multiple of."""

    shape: tuple[int, int]
    strides: tuple[int, ...]
    alignment: int = ALIGNMENT

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        address = tensor.data_ptr()
        return Layout((tensor.shape[1], tensor.shape[2]), tensor.stride(), min(ALIGNMENT, address & -address or ALIGNMENT))

    def matrix(self, dtype: torch.dtype, batch: int) -> Matrix | None:
        """The transpose of each matrix, as it lies in memory column by column; None where neither axis has stride 1, or columns
        overlap. The stride of an axis of one element does not matter."""
        batch_stride = self.strides[0] if batch > 1 else 0
        for inner, outer, transposed in ((1, 0, False), (0, 1, True)):
            rows, columns = self.shape[inner], self.shape[outer]
            stride = self.strides[1 + outer] if columns > 1 else rows
            if (self.strides[1 + inner] == 1 or rows == 1) and stride >= rows:
                return Matrix(dtype, rows, columns, stride, batch_stride, transposed, self.alignment)
        return None


class LtCandidate(MatmulLibrary):
    """Proposal number `rank` of the heuristic at a call's sizes, the last one where there are fewer. Written straight into the
    result; where there is an epilogue, into scratch memory that its kernel reads. Operands that the library cannot describe
    (rows that overlap, no axis of stride 1, nothing to add up) are multiplied by ATen, and the first time that is logged."""

    origin = "cublaslt"

    def __init__(
        self, kernel: GemmKernel, unfused: Callable[..., None] | None, target: torch.device, rank: int
    ) -> None:
        super().__init__(kernel, unfused, target)
        self.rank, self.name, self.config = rank, f"cublaslt {rank}", Config.of(proposal=rank)
        self.device = (target.index or 0) if target.type == "cuda" else -1
        self._told_of_aten = False

    @cached_property
    def source_hash(self) -> str:
        return digest(f"cublaslt {cublaslt.version()} {self.rank} {self.kernel.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether the heuristic has as many proposals for aligned operands of these sizes and strides."""
        return self.rank < len(self._proposals(self._expected(sizes)))

    def cost(self, sizes: Mapping[str, int]) -> float:
        return super().cost(sizes) * (1.0 + LATER * self.rank)

    def told(self, sizes: Mapping[str, int]) -> dict[str, Scalar]:
        """The algorithm at these sizes (strides that are not among them are those of dense operands): what runs it again, and
        what the library says of it."""
        algorithm = self._algorithm(self._expected({**self.kernel.dense_strides(sizes), **sizes}))
        return {} if algorithm is None else {"algorithm": algorithm.text, "algorithm_told": algorithm.told}

    def _expected(self, sizes: Mapping[str, int]) -> Product | None:
        """The product as it will be at these sizes, on memory as torch allocates it."""
        operands = {
            name: Layout(
                (sizes[rows], sizes[columns]),
                tuple(sizes[f"{name.lower()}_stride_{axis}"] for axis in ("b", rows.lower(), columns.lower())),
            )
            for name, rows, columns in (("A", "M", "K"), ("B", "K", "N"))
        }
        m, n = sizes["M"], sizes["N"]
        strides = (m * n, n, 1)
        if self.kernel.epilogue is None:
            strides = (sizes["c_stride_b"], sizes["c_stride_m"], sizes["c_stride_n"])
        out = self.kernel.product_dtype if self.kernel.epilogue is None else self.kernel.product_storage
        return self._described(operands["A"], operands["B"], Layout((m, n), strides), out, sizes["batch"])

    def _described(self, a: Layout, b: Layout, d: Layout, out: torch.dtype, batch: int) -> Product | None:
        """Row by row, C = A · B is, column by column, Cᵀ = Bᵀ · Aᵀ. None where it is no product that the library describes."""
        dtype = self.kernel.in_dtype
        if dtype not in cublaslt.TYPES or out not in cublaslt.TYPES or 0 in (batch, *a.shape, *b.shape):
            return None
        first, second = b.matrix(dtype, batch), a.matrix(dtype, batch)
        result = d.matrix(out, batch)
        if first is None or second is None or result is None or result.transposed:
            return None
        if not dtype.is_floating_point:
            compute = cublaslt.COMPUTE_32I
        else:
            compute = cublaslt.COMPUTE_TF32 if self.kernel.tf32 else cublaslt.COMPUTE_32F
        return Product(first, second, result, compute, batch)

    def _proposals(self, product: Product | None) -> tuple[Algorithm, ...]:
        if product is None:
            return ()
        try:
            return cublaslt.algorithms(product, PROPOSALS, self.device)
        except DeviceError as error:
            log.warning("cuBLASLt proposes nothing: %s", error)
            return ()

    def _algorithm(self, product: Product | None) -> Algorithm | None:
        found = self._proposals(product)
        return found[min(self.rank, len(found) - 1)] if found else None

    # a call ----------------------------------------------------------------------------------------------------------

    def _into(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, flat: bool) -> None:
        if not self._started(a, b, out):
            super()._into(a, b, out, flat)

    def _product(self, a: torch.Tensor, b: torch.Tensor, flat: bool) -> torch.Tensor:
        made = torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=self.kernel.product_storage, device=a.device)
        if not self._started(a, b, made):
            return super()._product(a, b, flat)
        return made[0] if flat else made

    def _started(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether the library has an algorithm for these operands, which then is under way."""
        product = self._described(Layout.of(a), Layout.of(b), Layout.of(out), out.dtype, a.shape[0])
        algorithm = self._algorithm(product)
        if product is None or algorithm is None:
            if out.numel() and not self._told_of_aten:
                self._told_of_aten = True
                given = " · ".join(f"{tuple(operand.shape)} with strides {operand.stride()}" for operand in (a, b))
                log.warning("Candidate %r has no algorithm of cuBLASLt for %s; ATen multiplies such operands.", self.name, given)
            return False
        workspace = torch.empty(algorithm.workspace, dtype=torch.uint8, device=a.device)
        stream = torch.cuda.current_stream(a.device).cuda_stream if a.device.type == "cuda" else 0
        addresses = (b.data_ptr(), a.data_ptr(), out.data_ptr())
        cublaslt.multiply(product, algorithm, addresses, workspace.data_ptr(), stream, self.device)
        return True


def candidates(kernel: GemmKernel, unfused: Callable[..., None] | None, target: torch.device) -> tuple[LtCandidate, ...]:
    """A candidate for each proposal. Raises DeviceError where the library cannot be had."""
    cublaslt.library()
    return tuple(LtCandidate(kernel, unfused, target, rank) for rank in range(PROPOSALS))


__all__ = ["PROPOSALS", "LtCandidate", "candidates"]
