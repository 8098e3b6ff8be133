"""Products by cuBLASLt's proposals, each a candidate: "cublaslt 0" is what its heuristic ranks first at the sizes of a call,
"cublaslt 1" what it ranks second. ATen only uses the first, and asks at every call; here the heuristic is asked once for each
combination of sizes, strides and alignment, and later calls run its answer again, all of it in C.

The answer depends on these and on the library's version, which is part of the source hash: a candidate that won in one process
is the same algorithm in the next. A measurement says which algorithm that is (`describe`). Where the library has the epilogue
itself (epilogue.py), it is asked for the product with the epilogue.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from polytile.candidates.handles import ProductHandle
from polytile.candidates.inner_kernel import InnerKernel
from polytile.candidates.library.epilogue import library_epilogue
from polytile.candidates.library.native import NativeProduct
from polytile.errors import DeviceError
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.problem import Config, Scalar, digest
from polytile.runtime.cuda import cublaslt, products
from polytile.runtime.cuda.cublaslt import Algorithm
from polytile.runtime.cuda.products import PROPOSALS, Plan

log = logging.getLogger("polytile.candidates")

LATER = 0.02
"""How much longer, relatively, each proposal is expected to take than the one before."""


class LtCandidate(NativeProduct):
    """Proposal number `rank` of the heuristic at a call's sizes, or the last one if there are fewer. It writes the result itself,
    or, if the library lacks the epilogue, scratch memory that the epilogue's kernel reads. Operands that the library cannot
    describe (rows that overlap, no axis of stride 1, nothing to add up, a bias whose address is not a multiple of 16) are left to
    ATen and the epilogue's own kernel, which is logged the first time.

    If the library refuses the algorithm at a candidate's first run, the candidate fails and takes no part. If it does so later,
    at other sizes, that is logged once. ATen takes that one call, and from then on the next proposal runs, in the end ATen.

    A later proposal that was the fastest runs at those sizes only. At other sizes it would be another algorithm, which nobody has
    timed: there the first proposal runs (`pinned_to`), as in ATen."""

    origin = "cublaslt"

    def __init__(
        self, kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device, rank: int
    ) -> None:
        super().__init__(kernel, unfused, target)
        self.rank, self.name, self.config = rank, f"cublaslt {rank}", Config.of(proposal=rank)
        self.epilogue = library_epilogue(kernel)
        if not kernel.in_dtype.is_floating_point:
            self.compute = cublaslt.COMPUTE_32I
        else:
            self.compute = cublaslt.COMPUTE_TF32 if kernel.tf32 else cublaslt.COMPUTE_32F
        self._fastest_at: Mapping[str, int] = {}
        self._plan: Plan | None = None
        self._told_of_aten = self._told_of_refusals = False

    @property
    def steady(self) -> bool:
        """Only the first proposal is mostly the same algorithm at sizes close by."""
        return self.rank == 0

    def pinned_to(self, sizes: Mapping[str, int]) -> LtCandidate:
        if self.steady:
            return self
        twin = copy.copy(self)
        twin._fastest_at = {name: sizes[name] for name in ("batch", "M", "N", "K") if name in sizes}
        twin._plan = None
        return twin

    @cached_property
    def source_hash(self) -> str:
        whole = " whole" if self.epilogue is not None else ""
        return digest(f"cublaslt {cublaslt.version()} {self.rank}{whole} {self.kernel.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether the heuristic has as many proposals for aligned operands of these sizes and strides."""
        return self.rank < len(self._proposals(sizes))

    def cost(self, sizes: Mapping[str, int]) -> float:
        return super().cost(sizes) * (1.0 + LATER * self.rank)

    def describe(self, sizes: Mapping[str, int]) -> dict[str, Scalar]:
        """The algorithm at these sizes (for strides that are missing, those of dense operands): what the library knows it by, and
        what it reports of it."""
        proposals = self._proposals({"batch": 1, **sizes})
        if not proposals:
            return {}
        algorithm = proposals[min(self.rank, len(proposals) - 1)]
        return {"algorithm": algorithm.text, "algorithm_attributes": algorithm.attributes}

    def _proposals(self, sizes: Mapping[str, int]) -> tuple[Algorithm, ...]:
        dtypes = self.kernel.in_dtype, self.product.d.dtype
        if any(dtype not in cublaslt.TYPES for dtype in dtypes):
            return ()
        shape = tuple(sizes[name] for name in ("batch", "M", "N", "K"))
        try:
            return products.proposals(self.product, self.device, shape, self.strides_at(sizes))
        except DeviceError as error:
            log.warning("cuBLASLt proposes nothing: %s", error)
            return ()

    def plan(self) -> Plan:
        if self._plan is None:
            self._plan = Plan(self.product, self.device, self.rank, self._fastest_at)
        return self._plan

    @property
    def right_anywhere(self) -> bool:
        return True

    @property
    def is_portable(self) -> bool:
        return not self._converts

    def portable(self) -> ProductHandle | None:
        if not self.is_portable:
            return None
        then = self.unfused if self.second_kernel else None
        return ProductHandle(self.product, self.rank, self._fastest_at, then, self.kernel.product_storage.itemsize)

    # calls that C declines ----------------------------------------------------------------------------------------------

    def _call(self, *args: Any) -> None:
        self._tell(args[: len(self.kernel.tensors)], args[len(self.kernel.tensors) :])
        super()._call(*args)

    def _multiply(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *ints: int) -> None:
        self._tell((a, b, out), ints)
        super()._multiply(a, b, out, *ints)

    def _tell(self, tensors: tuple[Any, ...], ints: tuple[int, ...]) -> None:
        """Logs, once each, why ATen multiplies."""
        if self._plan is not None and self._plan.refusals and not self._told_of_refusals:
            self._told_of_refusals = True
            log.warning("Candidate %r goes on with the next proposal: cuBLASLt refused to multiply with one.", self.name)
        elif 0 not in ints[:3] and not self._told_of_aten:
            self._told_of_aten = True
            batch, m, n, k = ints[:4]
            given = " · ".join(f"{shape} with strides {strides}" for shape, strides in (((batch, m, k), ints[4:7]),
                                                                                       ((batch, k, n), ints[7:10])))  # fmt: skip
            log.warning("Candidate %r has no algorithm of cuBLASLt for %s; ATen multiplies such operands.", self.name, given)


def candidates(kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device) -> tuple[LtCandidate, ...]:
    """A candidate for each proposal. Raises DeviceError if the library cannot be loaded."""
    cublaslt.library()
    return tuple(LtCandidate(kernel, unfused, target, rank) for rank in range(PROPOSALS))
