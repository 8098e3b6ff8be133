"""Products by cuBLASLt's proposals, each a candidate: "cublaslt 0" is what its heuristic ranks first at the sizes of a call,
"cublaslt 1" what it ranks second. ATen only uses the first, and asks at every call; here the heuristic is asked once for each
combination of sizes, strides and alignment, and later calls replay its answer.

The answer depends on these and on the library's version, which is part of the source hash: a candidate that won in one process
is the same algorithm in the next. A measurement says which algorithm that is (`describe`). Where the library has the epilogue
itself (epilogue.py), it is asked for the product with the epilogue.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch

from polytile.candidates.inner_kernel import InnerKernel
from polytile.candidates.library.epilogue import Strides, library_epilogue
from polytile.candidates.library.matmul import MatmulLibrary
from polytile.errors import DeviceError, LaunchFailed
from polytile.ir.sizes import evaluate
from polytile.matmul.gemm_args import operands
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.problem import Config, Scalar, digest
from polytile.runtime.cuda import cublaslt
from polytile.runtime.cuda.cublaslt import Algorithm, Matrix, Product, Replay

log = logging.getLogger("polytile.candidates")

PROPOSALS = 6
"""How many of the heuristic's proposals are candidates."""
LATER = 0.02
"""How much longer, relatively, each proposal is expected to take than the one before."""
ALIGNMENT = 16
"""Bytes; no algorithm asks for more."""
MOST_REPLAYS = 1024
"""Sizes, strides and alignments whose algorithm a candidate remembers."""


@dataclass(frozen=True)
class Layout:
    """How an operand (batch, rows, columns) lies in memory: rows and columns, the strides of all three axes (elements), and the
    bytes that its address is a multiple of."""

    shape: tuple[int, int]
    strides: tuple[int, ...]
    alignment: int = ALIGNMENT

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        return Layout((tensor.shape[1], tensor.shape[2]), tensor.stride(), aligned(tensor))

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


def aligned(tensor: torch.Tensor) -> int:
    """Bytes that the tensor's address is a multiple of, at most ALIGNMENT."""
    address = tensor.data_ptr()
    return min(ALIGNMENT, address & -address or ALIGNMENT)


@dataclass(frozen=True)
class Ends:
    """A product's result as the library is told of it: its layout and type, the layout of what is added to it, and the bytes that
    the bias's address is a multiple of, 0 without a bias."""

    d: Layout
    dtype: torch.dtype
    c: Layout | None = None
    bias: int = 0


class LtCandidate(MatmulLibrary):
    """Proposal number `rank` of the heuristic at a call's sizes, or the last one if there are fewer. It writes the result itself,
    or, if the library lacks the epilogue, scratch memory that the epilogue's kernel reads. Operands that the library cannot
    describe (rows that overlap, no axis of stride 1, nothing to add up, a bias whose address is not a multiple of 16) are left to
    ATen and the epilogue's own kernel, which is logged the first time.

    If the library refuses the algorithm at a candidate's first run, the candidate fails and takes no part. If it does so later,
    at other sizes, that is logged once and the next proposal runs, in the end ATen.

    A later proposal that was the fastest runs at those sizes only. At other sizes it would be another algorithm, which nobody has
    timed: there the first proposal runs (`pinned_to`), as in ATen."""

    origin = "cublaslt"

    def __init__(
        self, kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device, rank: int
    ) -> None:
        super().__init__(kernel, unfused, target)
        self.rank, self.name, self.config = rank, f"cublaslt {rank}", Config.of(proposal=rank)
        self.device = (target.index or 0) if target.type == "cuda" else -1
        self.epilogue = library_epilogue(kernel)
        self._at = {tensor.name: place for place, tensor in enumerate(kernel.tensors)}
        self._converts = kernel.operand_dtypes != (kernel.in_dtype, kernel.in_dtype)
        self._replays: dict[tuple[int, ...], Replay | None] = {}
        """By the product's integers and the alignment of each operand and result; None: ATen runs it."""
        self._refused: set[Algorithm] = set()
        self._fastest_at: Mapping[str, int] = {}
        self._has_run = self._told_of_aten = False

    @property
    def steady(self) -> bool:
        """Only the first proposal is mostly the same algorithm at sizes close by."""
        return self.rank == 0

    def pinned_to(self, sizes: Mapping[str, int]) -> LtCandidate:
        if self.steady:
            return self
        twin = copy.copy(self)
        twin._fastest_at = {name: sizes[name] for name in ("batch", "M", "N", "K") if name in sizes}
        twin._replays, twin._refused = {}, set(self._refused)
        return twin

    @cached_property
    def source_hash(self) -> str:
        whole = " whole" if self.epilogue is not None else ""
        return digest(f"cublaslt {cublaslt.version()} {self.rank}{whole} {self.kernel.text}")

    @property
    def second_kernel(self) -> bool:
        return self.unfused is not None and self.epilogue is None

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether the heuristic has as many proposals for aligned operands of these sizes and strides."""
        return self.rank < len(self._proposals(self._expected(sizes)))

    def cost(self, sizes: Mapping[str, int]) -> float:
        return super().cost(sizes) * (1.0 + LATER * self.rank)

    def describe(self, sizes: Mapping[str, int]) -> dict[str, Scalar]:
        """The algorithm at these sizes (for strides that are missing, those of dense operands): what is needed to run it again,
        and what the library reports of it."""
        algorithm = self._algorithm(self._expected({**self.kernel.dense_strides(sizes), **sizes}))
        return {} if algorithm is None else {"algorithm": algorithm.text, "algorithm_attributes": algorithm.told}

    def _expected(self, sizes: Mapping[str, int]) -> Product | None:
        """The product at these sizes, in memory as torch allocates it."""
        operands = {
            name: Layout(
                (sizes[rows], sizes[columns]),
                tuple(sizes[f"{name.lower()}_stride_{axis}"] for axis in ("b", rows.lower(), columns.lower())),
            )
            for name, rows, columns in (("A", "M", "K"), ("B", "K", "N"))
        }
        shape = sizes["M"], sizes["N"]
        if self.epilogue is not None:
            values = {symbol: sizes[symbol.name] for symbol in self.kernel.symbols if symbol.name in sizes}
            ends = self._finished(shape, values, dict.fromkeys(self._at, ALIGNMENT))
        elif self.kernel.epilogue is None:
            strides = tuple(sizes[f"c_stride_{axis}"] for axis in "bmn")
            ends = Ends(Layout(shape, strides), self.kernel.product_dtype)
        else:
            ends = Ends(Layout(shape, (math.prod(shape), shape[1], 1)), self.kernel.product_storage)
        return self._described(operands["A"], operands["B"], ends, sizes["batch"])

    def _finished(self, shape: tuple[int, int], values: Mapping[sympy.Symbol, int], alignments: Mapping[str, int]) -> Ends:
        """The ends of a product whose epilogue the library has. Strides without a known value are those of dense tensors."""
        epilogue = self.epilogue
        assert epilogue is not None

        def layout(name: str, strides: Strides) -> Layout:
            known = all(stride.free_symbols <= values.keys() for stride in strides)
            of_batch, of_row = (evaluate(stride, values) for stride in strides) if known else (math.prod(shape), shape[1])
            return Layout(shape, (of_batch, of_row, 1), alignments[name])

        added = layout(epilogue.addend, epilogue.addend_strides) if epilogue.addend else None
        bias = alignments[epilogue.bias] if epilogue.bias else 0
        return Ends(layout(epilogue.out, epilogue.out_strides), self.kernel.product_dtype, added, bias)

    def _described(self, a: Layout, b: Layout, ends: Ends, batch: int) -> Product | None:
        """C = A · B in row-major order as Cᵀ = Bᵀ · Aᵀ in column-major order; None where the library cannot describe it."""
        dtype, out = self.kernel.in_dtype, ends.dtype
        if dtype not in cublaslt.TYPES or out not in cublaslt.TYPES or 0 in (batch, *a.shape, *b.shape):
            return None
        first, second = b.matrix(dtype, batch), a.matrix(dtype, batch)
        result = ends.d.matrix(out, batch)
        added = ends.c.matrix(out, batch) if ends.c is not None else None
        if first is None or second is None or result is None or result.transposed:
            return None
        if (ends.c is not None and (added is None or added.transposed)) or ends.bias not in (0, ALIGNMENT):
            return None
        if not dtype.is_floating_point:
            compute = cublaslt.COMPUTE_32I
        else:
            compute = cublaslt.COMPUTE_TF32 if self.kernel.tf32 else cublaslt.COMPUTE_32F
        return Product(first, second, result, compute, batch, added, bool(ends.bias))

    def _proposals(self, product: Product | None) -> tuple[Algorithm, ...]:
        if product is None:
            return ()
        try:
            return cublaslt.algorithms(product, PROPOSALS, self.device)
        except DeviceError as error:
            log.warning("cuBLASLt proposes nothing: %s", error)
            return ()

    def _algorithm(self, product: Product | None, first: bool = False) -> Algorithm | None:
        """Proposal number `rank` (if `first`, number 0), or else the next one that was not refused, or else one before it."""
        proposals = self._proposals(product)
        at = 0 if first else min(self.rank, len(proposals) - 1)
        in_turn = (*proposals[at:], *proposals[:at]) if proposals else ()
        return next((algorithm for algorithm in in_turn if algorithm not in self._refused), None)

    # a call ----------------------------------------------------------------------------------------------------------

    def _call(self, *args: Any) -> None:
        kernel, count = self.kernel, len(self.kernel.tensors)
        batch, m, n = args[count : count + 3]
        ints, a, b = args[count : count + len(kernel.leading)], args[0], args[1]
        if self._converts:
            a, b = (view.to(kernel.in_dtype) for view in self._views(args)[:2])
        added = bias = 0
        if self.epilogue is not None:
            ints, out = args[count:], args[self._at[self.epilogue.out]]
            added, bias = (args[self._at[name]].data_ptr() if name else 0 for name in (self.epilogue.addend, self.epilogue.bias))
        elif self.unfused is None:
            out = args[2]
        else:
            out = torch.empty((batch, m, n), dtype=kernel.product_storage, device=a.device)
        addresses = b.data_ptr(), a.data_ptr(), out.data_ptr()
        key = (*ints, *(address % ALIGNMENT for address in (*addresses, added, bias)))
        replay = self._replays.get(key)
        if replay is None and key not in self._replays:
            replay = self._remember(key, self._planned(a, b, out, args))
        while replay is not None:
            workspace = torch.empty(replay.algorithm.workspace, dtype=torch.uint8, device=a.device)
            stream = torch.cuda.current_stream(a.device).cuda_stream if a.device.type == "cuda" else 0
            try:
                replay(*addresses, workspace.data_ptr(), stream, added, bias)
            except LaunchFailed as error:
                self._refuse(replay.algorithm, error)
                replay = self._remember(key, self._planned(a, b, out, args))
                continue
            self._has_run = True
            if self.unfused is not None and self.epilogue is None:
                self.unfused(out, *args[2:count], *args[count + len(ints) :])
            return
        super()._call(*args)

    def _views(self, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """A, B and, where there is no epilogue, C as batches of matrices."""
        named, _ = operands(self.kernel, args)
        return tuple(named[name] for name in "ABC" if name in named)

    def _planned(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, args: Sequence[Any]) -> Replay | None:
        """What runs a call with these arguments; None if ATen has to, which is logged once."""
        views = self._views(args)
        left, right = (a, b) if self._converts else views[:2]
        if self.epilogue is None:
            result = views[2] if self.unfused is None else out
            ends = Ends(Layout.of(result), result.dtype)
        else:
            at = len(self.kernel.tensors) + len(self.kernel.leading)
            values = dict(zip(self.kernel.symbols, args[at:], strict=False))
            alignments = {name: aligned(args[place]) for name, place in self._at.items()}
            ends = self._finished((left.shape[1], right.shape[2]), values, alignments)
        product = self._described(Layout.of(left), Layout.of(right), ends, left.shape[0])
        shape = dict(zip(("batch", "M", "K", "N"), (*left.shape, right.shape[2]), strict=True))
        algorithm = self._algorithm(product, first=any(shape[name] != size for name, size in self._fastest_at.items()))
        if product is not None and algorithm is not None:
            return Replay(product, algorithm, self.device)
        if out.numel() and not self._told_of_aten:
            self._told_of_aten = True
            given = " · ".join(f"{tuple(operand.shape)} with strides {operand.stride()}" for operand in (left, right))
            log.warning("Candidate %r has no algorithm of cuBLASLt for %s; ATen multiplies such operands.", self.name, given)
        return None

    def _remember(self, key: tuple[int, ...], replay: Replay | None) -> Replay | None:
        if len(self._replays) >= MOST_REPLAYS:
            self._replays.clear()
        self._replays[key] = replay
        return replay

    def _refuse(self, algorithm: Algorithm, error: LaunchFailed) -> None:
        """Has another algorithm run in place of this one. Raises `error` if none has run yet: then the candidate fails."""
        if not self._has_run:
            raise error
        if not self._refused:
            log.warning("Candidate %r goes on with the next proposal: %s", self.name, error)
        self._refused.add(algorithm)


def candidates(kernel: GemmKernel, unfused: InnerKernel | None, target: torch.device) -> tuple[LtCandidate, ...]:
    """A candidate for each proposal. Raises DeviceError if the library cannot be loaded."""
    cublaslt.library()
    return tuple(LtCandidate(kernel, unfused, target, rank) for rank in range(PROPOSALS))


__all__ = ["PROPOSALS", "LtCandidate", "candidates"]
