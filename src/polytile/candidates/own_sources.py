"""polytile's own sources of candidates, in canonical order: generated Triton, the library, generated C++, cuBLASLt, CUTLASS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from polytile.candidates import cpp_products, sources
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp_attention import attention_candidates as cpp_attentions
from polytile.candidates.library import attention, packed_int4, row_scales, split_k
from polytile.candidates.library.grouped import GroupedLibrary
from polytile.candidates.library.matmul import DequantisedLibrary, DualMatmulLibrary, ScaledLibrary
from polytile.candidates.library.native import AtenProduct
from polytile.candidates.library.padding import PaddedLibrary
from polytile.candidates.sources import AttentionRequest, ProductRequest, Source
from polytile.errors import CompilerMissing, DeviceError, LoweringError

log = logging.getLogger("polytile.candidates")


def alone(asked: ProductRequest) -> Candidate | None:
    """The library's only candidate for a product that no library function computes in one call: dual products, products with
    scales or with computed operands, grouped products. None for all others."""
    if asked.materialised is not None:
        return asked.materialised
    kernel = asked.kernel
    if kernel.spec.grouped:
        return GroupedLibrary(kernel, asked.unfused, None if asked.native else asked.target)
    if asked.native or (kernel.second is None and kernel.scales is None):
        return None
    return (DualMatmulLibrary if kernel.second is not None else ScaledLibrary)(kernel, asked.unfused, asked.target)


CALLS = "runs as a library call"


def _unless(error: type[Exception], made: Callable[[], Sequence[Candidate]], otherwise: str) -> Sequence[Candidate]:
    """The candidates; none where making them raises `error`, which the log then has after `otherwise`."""
    try:
        return made()
    except error as why:
        log.info("%s: %s", otherwise, why)
        return ()


class _Triton(Source):
    """Generated Triton kernels for GPUs. They contain epilogues and prologues."""

    name = "triton"
    everywhere = True

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        if asked.native:
            return ()
        from polytile.candidates.triton_matmul import gemm_candidates

        return _unless(LoweringError, lambda: gemm_candidates(asked.kernel, asked.name, asked.target), f"{asked.name} {CALLS}")

    def attentions(self, asked: AttentionRequest) -> Sequence[Candidate]:
        if asked.native:
            return ()
        from polytile.candidates.triton_attention import attention_candidates

        problem, name = asked.problem, asked.name
        return _unless(LoweringError, lambda: attention_candidates(problem, name, asked.target), f"{name} {CALLS}")


class _Library(Source):
    """ATen's operators: cuBLAS on GPUs, MKL and oneDNN on processors. On the operands as they are, on padded operands, and
    split along K."""

    name = "library"
    everywhere = True

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        kernel, unfused, target = asked.kernel, asked.unfused, asked.target
        if asked.native and not kernel.spec.grouped:
            library = DequantisedLibrary if kernel.scales is not None else AtenProduct
            return (asked.materialised or library(kernel, unfused),)
        if (only := alone(asked)) is not None:
            return (only, *packed_int4.candidates(asked))
        plain = AtenProduct(kernel, unfused, target), PaddedLibrary(kernel, unfused, target)
        return (*plain, *row_scales.candidates(kernel, target), *split_k.candidates(kernel, unfused, target))

    def attentions(self, asked: AttentionRequest) -> Sequence[Candidate]:
        return attention.candidates(asked.problem, asked.target)


class _Cpp(Source):
    """Generated C++ kernels for processors."""

    name = "cpp"
    everywhere = True

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        return cpp_products.product_candidates(asked.kernel, asked.name, asked.threads) if asked.native else ()

    def attentions(self, asked: AttentionRequest) -> Sequence[Candidate]:
        if not asked.native or asked.problem.dropout is not None:
            return ()
        problem, name = asked.problem, asked.name
        return _unless(CompilerMissing, lambda: cpp_attentions(problem, name, asked.threads), f"{name} {CALLS}")


class _CublasLt(Source):
    """The proposals of cuBLASLt's heuristic."""

    name = "cublaslt"

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        if asked.native or asked.target.type != "cuda" or torch.version.hip is not None or alone(asked) is not None:
            return ()
        from polytile.candidates.library import cublaslt

        try:
            return cublaslt.candidates(asked.kernel, asked.unfused, asked.target)
        except DeviceError as error:
            log.warning("%s has no candidates of cuBLASLt: %s", asked.name, error)
            return ()


class _Cutlass(Source):
    """Products of CUTLASS's collectives on Hopper, compiled at run time. Without headers and a compiler it has no candidates."""

    name = "cutlass"

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        if asked.native or asked.target.type != "cuda" or torch.version.hip is not None:
            return ()
        from polytile.candidates import cutlass

        without = f"{asked.name} has no candidates of CUTLASS"
        return _unless(CompilerMissing, lambda: cutlass.product_candidates(asked.kernel, asked.name, asked.target), without)


LIBRARY = _Library()

for _source in (_Triton(), LIBRARY, _Cpp(), _CublasLt(), _Cutlass()):
    sources.register_source(_source)
